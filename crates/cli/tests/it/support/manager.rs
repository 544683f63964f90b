//! A stand-in for systemd on a private bus: makes scopes, or misbehaves.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use penfold_cgroup::LeafPlace;
use zbus::message::{Header, Type};
use zbus::{Connection, Message, MessageStream, ObjectPath, OwnedVariant, Variant};

use super::{TestEnv, is_root, skip};

const JOB: &str = "/org/freedesktop/systemd1/job/1";
/// The longest life of a scope here.
const LIFE: Duration = Duration::from_mins(2);

/// How the stand-in answers.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// The answer to the request for a scope.
    pub scope: Answer,
    /// Whether an empty scope is removed.
    pub removes: bool,
    /// `Type=`, `RemainAfterExit=` and `KillMode=` of the caller's service.
    pub service: (&'static str, bool, &'static str),
    /// Whether the user's manager goes on after logout.
    pub lingers: bool,
}

/// The answer to the request for a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The scope is made.
    Makes,
    /// The same, but the manager is an old one, which does not know all properties.
    MakesAsOld,
    /// The request is refused.
    Refuses,
    /// The job fails.
    Fails,
    /// Success is reported, but the process is not moved.
    Lies,
    /// There is no answer.
    Hangs,
}

impl Default for Manner {
    fn default() -> Manner {
        Manner {
            scope: Answer::Makes,
            removes: true,
            service: ("simple", false, "control-group"),
            lingers: true,
        }
    }
}

/// A private bus with the stand-in on it.
pub struct FakeManager {
    bus: Child,
    address: String,
    requests: Arc<AtomicUsize>,
    made: Arc<Mutex<Vec<PathBuf>>>,
}

impl FakeManager {
    /// Starts bus and stand-in; nothing, and the reason said, where that cannot be. Scopes belong to this user.
    pub fn start(env: &TestEnv, manner: Manner, user: u32) -> Option<FakeManager> {
        if !is_root() {
            skip("only root can make scopes for others");
            return None;
        }
        let Ok(place) = LeafPlace::find_here() else {
            skip("no cgroup2 to write to");
            return None;
        };
        let scopes = place.path().to_owned();
        let (mut bus, address) = match start_bus(env) {
            Ok(started) => started,
            Err(error) => {
                skip(&format!("no dbus-daemon: {error}"));
                return None;
            }
        };
        let mut line = String::new();
        BufReader::new(bus.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("unix:"), "{line}");
        let requests = Arc::new(AtomicUsize::new(0));
        let made = Arc::new(Mutex::new(Vec::new()));
        let stand_in =
            StandIn { manner, user, scopes, requests: Arc::clone(&requests), made: Arc::clone(&made) };
        let (ready, is_ready) = mpsc::channel();
        let to = address.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // Ends with the bus.
            let _ = runtime.block_on(stand_in.serve(&to, &ready));
        });
        is_ready.recv_timeout(Duration::from_secs(30)).unwrap();
        Some(FakeManager { bus, address, requests, made })
    }

    /// Lets a command speak to this bus, and to no other.
    pub fn for_command<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.env("DBUS_SESSION_BUS_ADDRESS", &self.address).env("DBUS_SYSTEM_BUS_ADDRESS", &self.address)
    }

    /// The number of requests for a scope so far.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// The scopes that exist.
    pub fn scopes(&self) -> Vec<PathBuf> {
        let made = self.made.lock().unwrap();
        made.iter().filter(|path| path.try_exists().unwrap()).cloned().collect()
    }
}

impl Drop for FakeManager {
    fn drop(&mut self) {
        let _ = self.bus.kill();
        let _ = self.bus.wait();
    }
}

fn start_bus(env: &TestEnv) -> std::io::Result<(Child, String)> {
    let address = format!("unix:path={}", env.path("bus").display());
    let config = env.path("bus.conf");
    let mut file = std::fs::File::create(&config)?;
    write!(
        file,
        "<busconfig><type>session</type><listen>{address}</listen><auth>EXTERNAL</auth>\
         <policy context=\"default\"><allow send_destination=\"*\" eavesdrop=\"true\"/><allow eavesdrop=\"true\"/>\
         <allow own=\"*\"/><allow user=\"*\"/></policy></busconfig>"
    )?;
    std::fs::set_permissions(&config, std::fs::Permissions::from_mode(0o644))?;
    let mut command = Command::new("dbus-daemon");
    command.arg(format!("--config-file={}", config.display())).args([
        "--nofork",
        "--nopidfile",
        "--print-address",
    ]);
    let bus = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    Ok((bus, address))
}

struct StandIn {
    manner: Manner,
    user: u32,
    scopes: PathBuf,
    requests: Arc<AtomicUsize>,
    made: Arc<Mutex<Vec<PathBuf>>>,
}

impl StandIn {
    async fn serve(&self, address: &str, ready: &mpsc::Sender<()>) -> zbus::Result<()> {
        let bus = zbus::connection::Builder::address(address).build().await?;
        let mut calls = MessageStream::from(&bus);
        bus.request_name("org.freedesktop.systemd1").await?;
        bus.request_name("org.freedesktop.login1").await?;
        let _ = ready.send(());
        while let Some(message) = next(&mut calls).await {
            let message = message?;
            if message.message_type() == Type::MethodCall {
                self.answer(&bus, &message).await?;
            }
        }
        Ok(())
    }

    async fn answer(&self, bus: &Connection, message: &Message) -> zbus::Result<()> {
        let call = message.header();
        let unit = ObjectPath::try_from("/org/freedesktop/systemd1/unit/x")?;
        match call.member().map(ToString::to_string).as_deref() {
            Some("StartTransientUnit") => self.start(bus, message, &call).await,
            Some("GetUnit" | "GetUser") => bus.reply(&call, &unit).await,
            Some("Get") => {
                let body = message.body();
                let (_, name): (String, String) = body.deserialize()?;
                let (kind, remains, kill_mode) = self.manner.service;
                let value = match name.as_str() {
                    "Type" => Variant::from(kind),
                    "RemainAfterExit" => Variant::from(remains),
                    "KillMode" => Variant::from(kill_mode),
                    _ => Variant::from(self.manner.lingers),
                };
                bus.reply(&call, &value).await
            }
            _ => Ok(()),
        }
    }

    async fn start(&self, bus: &Connection, message: &Message, call: &Header<'_>) -> zbus::Result<()> {
        type Properties = Vec<(String, OwnedVariant)>;
        self.requests.fetch_add(1, Ordering::SeqCst);
        let body = message.body();
        let (name, _, properties, _): (String, String, Properties, Vec<(String, Properties)>) =
            body.deserialize()?;
        let value = |wanted: &str| {
            properties.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.try_clone().unwrap())
        };
        assert_eq!(value("Delegate").map(bool::try_from), Some(Ok(true)));
        let refuse = async |sentence: &str| {
            bus.reply_error(call, "org.freedesktop.DBus.Error.AccessDenied", &(sentence,)).await
        };
        match self.manner.scope {
            Answer::Hangs => return Ok(()),
            Answer::Refuses => return refuse("Interactive authentication required.").await,
            Answer::MakesAsOld if value("OOMPolicy").is_some() => {
                return refuse("Cannot set property OOMPolicy, or unknown property.").await;
            }
            _ => {}
        }
        let result = match self.manner.scope {
            Answer::Fails => "failed",
            Answer::Lies => "done",
            _ => {
                let pids: Vec<u32> = value("PIDs").unwrap().try_into().unwrap();
                self.make(&self.scopes.join(&name), &pids).unwrap();
                "done"
            }
        };
        let job = ObjectPath::try_from(JOB)?;
        let signal = (1_u32, &job, name.as_str(), result);
        let manager = "org.freedesktop.systemd1.Manager";
        // As systemd may: the job ends before the answer.
        bus.emit_signal(None::<&str>, "/org/freedesktop/systemd1", manager, "JobRemoved", &signal).await?;
        bus.reply(call, &job).await
    }

    fn make(&self, scope: &Path, pids: &[u32]) -> std::io::Result<()> {
        std::fs::create_dir(scope)?;
        self.made.lock().unwrap().push(scope.to_owned());
        for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            chown(scope.join(file), Some(self.user), Some(self.user))?;
        }
        for pid in pids {
            std::fs::write(scope.join("cgroup.procs"), pid.to_string())?;
        }
        if self.manner.removes {
            let scope = scope.to_owned();
            std::thread::spawn(move || remove_when_empty(&scope));
        }
        Ok(())
    }
}

fn remove_when_empty(scope: &Path) {
    let until = Instant::now() + LIFE;
    while Instant::now() < until {
        match std::fs::read_to_string(scope.join("cgroup.events")) {
            Ok(events) if events.contains("populated 0") => {
                for below in std::fs::read_dir(scope).into_iter().flatten().filter_map(Result::ok) {
                    let _ = std::fs::remove_dir(below.path());
                }
                let _ = std::fs::remove_dir(scope);
            }
            Ok(_) => {}
            Err(_) => return,
        }
        let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let _ = rustix::event::poll(&mut [], Some(&pause));
    }
}

async fn next(stream: &mut MessageStream) -> Option<zbus::Result<Message>> {
    std::future::poll_fn(|context| {
        zbus::export::futures_core::Stream::poll_next(std::pin::Pin::new(&mut *stream), context)
    })
    .await
}
