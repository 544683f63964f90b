//! Shared code of the tests: hand-made records, real leaves, real processes.

use penfold_testkit::wait_until;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use penfold_control::Resolver;
use penfold_control::view::{self, SandboxView};
use penfold_state::intent::{DetachedIntent, Intent};
use penfold_state::record::{Record, SCHEMA};
use penfold_state::state::{State, Status};
use penfold_state::time::now_ms;
use penfold_state::{Id, Limits, Registry};
use penfold_teardown::Level;

/// Makes the intent of a foreground sandbox with a new id and no resources.
pub fn intent() -> Intent {
    Intent {
        schema: SCHEMA,
        id: Id::new().unwrap(),
        name: None,
        labels: BTreeMap::new(),
        command: vec!["true".to_owned()],
        boot: penfold_process::boot_id().unwrap(),
        within: Vec::new(),
        leaf: None,
        limits: Limits::default(),
        scope: None,
        scratch: None,
        resources: Vec::new(),
        event_log: None,
        spare: None,
        identity: None,
        profile: None,
        outside: None,
        workspace: None,
        home: None,
        ancestors: Vec::new(),
        session: None,
        since: None,
        made_at_ms: 0,
        signal: None,
        grace_ms: None,
        patience_ms: None,
        detached: None,
    }
}

/// A state root for one test.
pub struct TestEnv {
    dir: tempfile::TempDir,
}

impl TestEnv {
    pub fn new() -> TestEnv {
        TestEnv { dir: tempfile::Builder::new().prefix("penfold-test-").tempdir().unwrap() }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn registry(&self) -> Registry {
        Registry::open(&self.root()).unwrap()
    }

    pub fn resolver(&self) -> Resolver {
        Resolver::new(&self.root())
    }

    pub fn record(&self, id: &str) -> PathBuf {
        self.root().join("sandboxes").join(id)
    }

    /// Makes the intent of a detached sandbox of this root.
    pub fn intent(&self, name: Option<&str>) -> Intent {
        Intent {
            name: name.map(str::to_owned),
            labels: BTreeMap::from([("job".to_owned(), "17".to_owned())]),
            command: vec!["sleep".to_owned(), "1000".to_owned()],
            made_at_ms: now_ms() - 60_000,
            detached: Some(DetachedIntent { root: Some(self.root()), ..DetachedIntent::default() }),
            ..intent()
        }
    }

    /// Makes a record whose lock is held as long as the value lives.
    pub fn reserve(&self, intent: &Intent) -> Record {
        self.registry().reserve(intent).unwrap()
    }

    /// Makes a record without a supervisor and without a report.
    pub fn abandon(&self, intent: &Intent) {
        self.close(self.reserve(intent));
    }

    /// Releases the lock of a record. A fork of another test also holds the lock until it executes its program.
    pub fn close(&self, record: Record) {
        let id = record.name().to_owned();
        drop(record);
        wait_until("the lock is free", || self.registry().look(&id).unwrap().unwrap().lock().is_free());
    }

    /// Makes the record of an ended sandbox.
    pub fn end(&self, intent: &Intent, exit: &str, cause: &str) {
        let record = self.reserve(intent);
        let id = intent.id.short();
        self.put(
            &id,
            "exit.json",
            &format!(r#"{{"schema":1,"exit":{exit},"cause":"{cause}","at_ms":{}}}"#, now_ms()),
        );
        self.put(&id, "report.json", &report(&id, exit, cause));
        self.close(record);
    }

    pub fn put(&self, id: &str, file: &str, text: &str) {
        std::fs::write(self.record(id).join(file), text).unwrap();
    }

    pub fn see(&self, id: &str) -> Option<SandboxView> {
        let resolver = self.resolver();
        let known = resolver.resolve(id).ok()?;
        view::observe_sandbox(&resolver, &known)
    }

    /// Returns the sandbox as `ps` and `ps -a` list it.
    pub fn listed(&self, id: &str, all: bool) -> Option<SandboxView> {
        view::list_views(&self.root(), all).unwrap().into_iter().find(|view| view.id == id)
    }
}

/// Makes the state that a supervisor writes; it names this process, which is not in the sandbox.
pub fn state(status: Status) -> State {
    let pid = rustix::process::getpid();
    let stat = penfold_process::ProcFs::open().unwrap().stat(pid).unwrap().unwrap();
    State {
        schema: SCHEMA,
        status,
        supervisors: vec![stat.id()],
        leader: Some(stat.id()),
        level: Level::Cgroup,
        started_at_ms: now_ms(),
        expires_at_ms: None,
        next_start_at_ms: None,
        execs: Vec::new(),
        missing: Vec::new(),
    }
}

pub fn report(id: &str, exit: &str, cause: &str) -> String {
    format!(
        r#"{{"schema":1,"id":"{id}","command":["x"],"level":"cgroup","cause":"{cause}","exit":{exit},
        "started_at_ms":1,"duration_ms":2,"ended":[],"survivors":[],"steps":[],"verified":true,"took_us":1,
        "cpu_us":0,"peak_memory_bytes":0}}"#
    )
}

/// A process that is killed when this value is dropped, in a leaf that is removed with it if one could be made.
pub struct Alive {
    child: Child,
    leaf: Option<PathBuf>,
}

impl Alive {
    /// Starts a process with the marker of a sandbox.
    pub fn marked(marker: &str) -> Alive {
        let child = Command::new("sleep").arg("1000").env("PENFOLD_SANDBOX", marker).spawn().unwrap();
        let alive = Alive { child, leaf: None };
        let file = format!("/proc/{}/environ", alive.pid());
        wait_until("the process has its environment", || {
            std::fs::read(&file)
                .is_ok_and(|text| text.windows(marker.len()).any(|part| part == marker.as_bytes()))
        });
        alive
    }

    /// Starts a process in the leaf of a sandbox; `None` if no leaf can be made.
    pub fn in_leaf(intent: &mut Intent) -> Option<Alive> {
        let place = penfold_cgroup::LeafPlace::find_here().ok()?;
        let leaf = place.path().join(format!("penfold-{}", intent.id));
        std::fs::create_dir(&leaf).unwrap();
        intent.leaf = Some(leaf.clone());
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let alive = Alive { child, leaf: Some(leaf.clone()) };
        std::fs::write(leaf.join("cgroup.procs"), alive.pid().to_string()).unwrap();
        let text = serde_json::to_vec(&intent).unwrap();
        rustix::fs::setxattr(&leaf, "user.penfold", &text, rustix::fs::XattrFlags::empty()).unwrap();
        assert!(std::fs::read_to_string(leaf.join("cgroup.events")).unwrap().contains("populated 1"));
        Some(alive)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Ends the process and keeps its leaf.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(leaf) = &self.leaf {
            let events = leaf.join("cgroup.events");
            wait_until("the leaf is empty", || {
                std::fs::read_to_string(&events).is_ok_and(|text| text.contains("populated 0"))
            });
        }
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.end();
        if let Some(leaf) = &self.leaf {
            let _ = std::fs::remove_dir(leaf);
        }
    }
}

/// Makes a control socket with a listener.
pub fn listen(record: &Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(record.join("control.sock")).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    socket
}

pub fn remove(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    std::fs::remove_dir(dir).unwrap();
}

/// Overwrites a whole file, as a vandal would.
pub fn scribble(path: &Path, bytes: &[u8]) {
    let _ = std::fs::remove_file(path);
    std::fs::File::create(path).unwrap().write_all(bytes).unwrap();
}
