//! `relay forget`: removes a relay that will not return.

use clap::Args;
use operate::forget::forget;
use outbox_log::RelayName;

use super::config::OnePipeline;
use super::exit::Exit;
use super::failure::Failure;
use super::progress::during;
use super::signature::Signature;

/// The arguments of `relay forget`.
#[derive(Debug, Args)]
pub struct Forget {
    #[command(flatten)]
    pipeline: OnePipeline,

    /// The name of the relay as shown by `relay retention`.
    #[arg(value_name = "RELAY")]
    relay: String,

    /// Also discard its parked messages, which are then not sent again.
    #[arg(long)]
    discard_parked: bool,

    #[command(flatten)]
    signature: Signature,
}

impl Forget {
    pub(crate) async fn execute(self) -> Result<Exit, Failure> {
        let signed = self.signature.signed()?;
        let pipeline = self.pipeline.read()?;
        let name = RelayName::new(self.relay.as_str()).map_err(|error| Failure::new(Exit::Usage, error))?;
        during("forgetting", forget(&pipeline, &signed, &name, self.discard_parked)).await?;
        note!("relay {name} is forgotten, with its pauses");
        Ok(Exit::Success)
    }
}
