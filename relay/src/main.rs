//! The relay command: reads the command line, does what it says, and ends with the code that tells
//! how it went.

use relay::cli::{Cli, Exit};

fn main() {
    let cli = match Cli::of_process() {
        Ok(cli) => cli,
        Err(failure) => {
            eprint!("{}", failure.shown());
            std::process::exit(failure.exit().code());
        }
    };
    #[cfg(feature = "crash-points")]
    if let Err(error) = message::crash_points::arm_from_environment() {
        eprintln!("{}: {error}", message::crash_points::VARIABLE);
        std::process::exit(Exit::Usage.code());
    }
    let exit = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime.block_on(run(cli)),
        Err(error) => {
            eprintln!("the runtime could not start: {error}");
            Exit::Broken
        }
    };
    // Not by returning: that would wait for client libraries' threads, also after a second signal.
    std::process::exit(exit.code());
}

async fn run(cli: Cli) -> Exit {
    // Boxed: it is as large as the largest command.
    match Box::pin(cli.execute()).await {
        Ok(exit) => exit,
        Err(failure) => {
            eprint!("{}", failure.shown());
            failure.exit()
        }
    }
}
