//! What a sandbox owns besides its processes: directories, network, mounts.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use penfold_resource::Cidr;
use penfold_resource::request::{MountRequest, Network, OwnRequest, Request, Sockets, TapRequest, Workspace};

use crate::failure::{Failure, FailureKind};

/// The flags of `run` for resources.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Resources")]
pub(crate) struct ResourceArgs {
    /// Working directory of the command, made if missing and removed at the end; one that exists needs --keep.
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Leave the workspace in place.
    #[arg(long, requires = "workspace")]
    keep: bool,
    /// Make a directory with a short path for sockets, removed at the end; `PENFOLD_SOCKETS` names it.
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true)]
    #[expect(clippy::option_option, reason = "no flag, a flag without a value, a flag with one")]
    sockets: Option<Option<PathBuf>>,
    /// Run the command in a network namespace of its own; `PENFOLD_NETNS` names it.
    #[arg(long)]
    netns: bool,
    /// Make the namespace for the command to enter, with `ip netns exec "$PENFOLD_NETNS"`, and start the command outside.
    #[arg(long)]
    netns_outside: bool,
    /// Link the namespace with the host; the address of eth0 inside.
    #[arg(long, value_name = "ADDRESS/PREFIX")]
    address: Option<Cidr>,
    /// Address of the link's end on the host, and the default route inside.
    #[arg(long, value_name = "ADDRESS", requires = "address")]
    gateway: Option<IpAddr>,
    /// Address of the link's end on the host, without a route.
    #[arg(long, value_name = "ADDRESS/PREFIX", requires = "address", conflicts_with = "gateway")]
    peer_address: Option<Cidr>,
    /// Make a tap device, in the namespace if there is one; `PENFOLD_TAP` names it.
    #[arg(long, value_name = "NAME[,user=UID]", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    tap: Option<TapRequest>,
    /// Mount for the time of the sandbox: type=bind,source=,target= or type=overlay,lower=A:B,target= or type=tmpfs,target=;
    /// may be repeated.
    #[arg(long, value_name = "OPTIONS")]
    mount: Vec<MountRequest>,
    /// Release what the command makes itself: path=, netns=, link=, mount=, loop= (its file), nft=FAMILY:TABLE; may be
    /// repeated.
    #[arg(long, value_name = "KIND=NAME")]
    own: Vec<OwnRequest>,
}

impl ResourceArgs {
    /// What is asked for.
    pub(crate) fn request(self) -> Request {
        let ResourceArgs {
            workspace,
            keep,
            sockets,
            netns,
            netns_outside,
            address,
            gateway,
            peer_address,
            tap,
            mount,
            own,
        } = self;
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let namespace = netns || netns_outside || address.is_some();
        let has_network = namespace || tap.is_some();
        let network = Network { address, gateway, peer_address, tap, namespace, enter: !netns_outside };
        Request {
            workspace: workspace.map(|path| Workspace { path: absolute(path), keep }),
            sockets: sockets.map(|path| Sockets { path }),
            network: has_network.then_some(network),
            mounts: mount,
            own,
        }
    }
}

impl ResourceArgs {
    /// Refuses a relative workspace where it has no beginning.
    ///
    /// # Errors
    /// When the working directory has been removed, or cannot be found.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Some(path) = self.workspace.as_deref().filter(|path| path.is_relative()) else { return Ok(()) };
        let here = std::env::current_dir().map(|_| ());
        here.map_err(|error| {
            let sentence = format!("cannot tell where the workspace `{}` is", path.display());
            let failure = Failure::new(FailureKind::NotStarted, sentence);
            match error.kind() {
                std::io::ErrorKind::NotFound => failure.because("the working directory has been removed"),
                _ => failure.because(error),
            }
        })
    }
}
