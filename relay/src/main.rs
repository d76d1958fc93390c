//! The relay command: parses the command line, runs the command, and exits with its code.

use relay::{Cli, Exit};

fn main() {
    let cli = match Cli::of_process() {
        Ok(cli) => cli,
        Err(failure) => {
            failure.print();
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
    // Exits instead of returning, which would wait for client libraries' threads even after a
    // second signal.
    std::process::exit(exit.code());
}

async fn run(cli: Cli) -> Exit {
    // Boxed: the future is as large as that of the largest command.
    match Box::pin(cli.execute()).await {
        Ok(exit) => exit,
        Err(failure) => {
            failure.print();
            failure.exit()
        }
    }
}
