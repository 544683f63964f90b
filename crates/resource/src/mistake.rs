//! The mistakes in a request.

use std::net::IpAddr;
use std::path::PathBuf;

/// A mistake in a request: one sentence that says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// A path that depends on a working directory.
    #[error("the path `{}` is not absolute; write it from the root", .0.display())]
    Relative(PathBuf),
    /// A path with `.` or `..` or a NUL, or the root.
    #[error("the path `{}` is not usable; write it without `.` and `..`, and not the root", .0.display())]
    BadPath(PathBuf),
    /// A workspace that exists, and would be removed.
    #[error("the workspace `{}` exists; add `keep = true` to use it, or name a directory that does not exist", .0.display())]
    WorkspaceExists(PathBuf),
    /// A workspace that is a file.
    #[error("the workspace `{}` is no directory", .0.display())]
    NoDirectory(PathBuf),
    /// A directory without a parent.
    #[error("the parent directory of `{}` does not exist; make it first", .0.display())]
    NoParent(PathBuf),
    /// A path that leaves no room for the name of a socket.
    #[error("the path `{}` is too long for sockets; name one of at most 80 bytes", .0.display())]
    LongSocketPath(PathBuf),
    /// The same path for two things.
    #[error("the path `{}` is given twice; remove one of the two", .0.display())]
    Twice(PathBuf),
    /// The same thing twice.
    #[error("{0} is given twice; remove one of the two")]
    OwnTwice(String),
    /// A source or lower directory that does not exist.
    #[error("the source `{}` does not exist", .0.display())]
    NoSource(PathBuf),
    /// A file to bind on something that is no file.
    #[error("the file `{}` can only be mounted on a file that exists", .0.display())]
    FileSource(PathBuf),
    /// No address with a prefix.
    #[error("`{text}` is no address with a prefix; write it like `10.7.0.2/30` or `fd00::2/64`")]
    Cidr {
        /// The text.
        text: String,
    },
    /// A gateway that cannot be reached.
    #[error("the gateway {0} is not another address in the network of `address`")]
    Gateway(IpAddr),
    /// A host's end that cannot be reached.
    #[error("`gateway` and `peer_address` need an `address` of the namespace's end")]
    NoAddress,
    /// Two addresses for the host's end.
    #[error("`gateway` is the address of the host's end; remove `peer_address`")]
    TwoHostAddresses,
    /// Links without a namespace.
    #[error(
        "without a network namespace there can be a `tap` only; remove `namespace = false` or the addresses"
    )]
    NoNamespace,
    /// A name that no link can have.
    #[error("`{0}` is no name of a link; write up to 15 letters without `/`, `:` and spaces")]
    LinkName(String),
    /// A name that no network namespace can have.
    #[error("`{0}` is no name of a network namespace; write a name without `/`")]
    NetnsName(String),
    /// A name that no table can have.
    #[error("`{0}` is no table of nftables; write it like `inet:name`")]
    NftName(String),
    /// No `KIND=NAME`.
    #[error(
        "`{0}` names nothing that a command makes; write `path=`, `netns=`, `link=`, `mount=`, `loop=` or `nft=` and a name"
    )]
    Own(String),
    /// A mount without a key.
    #[error("the mount `{mount}` has no `{key}`")]
    Missing {
        /// The mount.
        mount: String,
        /// The key.
        key: &'static str,
    },
    /// A key that this type of mount does not have.
    #[error("the mount `{mount}` has an unknown or repeated key `{key}`")]
    Key {
        /// The mount.
        mount: String,
        /// The key.
        key: String,
    },
    /// An unknown type of mount.
    #[error("`{0}` is no type of a mount; write `bind`, `overlay` or `tmpfs`")]
    MountType(String),
    /// Only one of the two directories of an overlay.
    #[error("an overlay needs both `upper` and `work`, or neither")]
    HalfOverlay,
    /// No size.
    #[error("`{0}` is no size; write a number of bytes, or one with K, M or G")]
    Size(String),
    /// No user.
    #[error("`{0}` is no tap; write `NAME` or `NAME,user=UID`")]
    Tap(String),
}
