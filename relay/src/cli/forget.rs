//! `relay forget`: removes a relay that is gone for good.

use clap::Args;
use outbox::log::RelayName;
use outbox::retention::ForgetError;

use super::config::OnePipeline;
use super::database;
use super::exit::Exit;
use super::failure::Failure;

/// The arguments of `relay forget`.
#[derive(Debug, Args)]
pub struct Forget {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// The name of the relay, as `relay retention` shows it.
    #[arg(value_name = "RELAY")]
    relay: String,

    /// Also discard its parked messages: they are never published.
    #[arg(long)]
    discard_parked: bool,
}

impl Forget {
    pub(crate) async fn execute(self) -> Result<Exit, Failure> {
        let pipeline = self.pipeline.read()?;
        let name = RelayName::new(self.relay.as_str()).map_err(|error| Failure::new(Exit::Usage, error))?;
        match database::retention(&pipeline)?.forget(&name, self.discard_parked).await {
            Ok(()) => {
                eprintln!("relay {name} is forgotten, with its pauses");
                Ok(Exit::Success)
            }
            Err(error @ ForgetError::Parked { .. }) => {
                let help = "look at them with `relay dead list`, or add --discard-parked to give them up";
                Err(Failure::with_help(Exit::Usage, error, help))
            }
            Err(ForgetError::Log(error)) => Err(Failure::from(error).about(&pipeline.name)),
            Err(error) => Err(Failure::new(Exit::Usage, error)),
        }
    }
}
