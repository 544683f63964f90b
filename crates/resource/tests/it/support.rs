//! The owner of a test, and looks at the host from outside.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use penfold_resource::request::{PlanPlaces, Request};
use penfold_resource::{PlannedResource, ResourceError, ResourceOwner, ResourcePresence};

/// Runs a test that makes namespaces: as root, in a process with one thread.
pub fn as_root(test: fn()) {
    if !rustix::process::geteuid().is_root() {
        return penfold_testkit::skip("needs root");
    }
    if std::fs::read_dir("/proc/self/task").unwrap().count() == 1 {
        return test();
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args([penfold_harness::name(), "--exact"]).output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A sandbox with nothing but resources. Whatever a test leaves is released at its end.
pub struct Sandbox {
    pub owner: ResourceOwner,
    pub dir: tempfile::TempDir,
    pub planned: Vec<PlannedResource>,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}{:04x}", std::process::id(), number);
        let owner = ResourceOwner { id, boot: penfold_process::boot_id().unwrap() };
        Sandbox { owner, dir: tempfile::tempdir().unwrap(), planned: Vec::new() }
    }

    /// A sandbox whose request is JSON; `DIR` stands for its directory.
    pub fn plan(request: &str) -> Sandbox {
        let mut sandbox = Sandbox::new();
        sandbox.planned = sandbox.try_plan(request).unwrap();
        sandbox
    }

    pub fn try_plan(&self, request: &str) -> Result<Vec<PlannedResource>, ResourceError> {
        let request = request.replace("DIR", self.dir.path().to_str().unwrap());
        let request: Request = serde_json::from_str(&request).unwrap();
        request.plan(&self.owner, &self.place())
    }

    pub fn place(&self) -> PlanPlaces {
        PlanPlaces { temporary: self.dir.path().to_owned(), short: self.dir.path().join("short") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn create(&self) {
        for planned in &self.planned {
            planned.check().unwrap();
        }
        for planned in &self.planned {
            planned.create(&self.owner).unwrap();
            let presence = planned.probe(&self.owner).unwrap();
            let is_own = matches!(planned, PlannedResource::Own(_));
            assert!(is_own || matches!(presence, ResourcePresence::Ours { .. }), "{planned:?}: {presence:?}");
        }
    }

    /// Releases everything in the reverse order; returns the errors.
    pub fn release(&self, limit: Duration) -> Vec<ResourceError> {
        let until = Instant::now() + limit;
        self.planned.iter().rev().filter_map(|planned| planned.release(&self.owner, until).err()).collect()
    }

    pub fn release_one(&self, index: usize, limit: Duration) -> Result<(), ResourceError> {
        self.planned[index].release(&self.owner, Instant::now() + limit)
    }

    #[track_caller]
    pub fn release_all(&self) {
        for _ in 0..2 {
            let errors = self.release(Duration::from_secs(10));
            assert!(errors.is_empty(), "{errors:?}");
        }
        for planned in &self.planned {
            assert_eq!(planned.probe(&self.owner).unwrap(), ResourcePresence::Absent, "{planned:?}");
        }
    }

    pub fn netns(&self) -> String {
        self.owner.name()
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.release(Duration::from_secs(5));
        for mount in penfold_testkit::mounts::mounts().unwrap_or_default().iter().rev() {
            if mount.point.starts_with(self.dir.path()) {
                let _ = rustix::mount::unmount(&mount.point, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}

/// Runs a program and returns its output; panics if it fails.
#[track_caller]
pub fn run(words: &[&str]) -> String {
    let (output, success) = attempt(words);
    assert!(success, "{words:?}: {output}");
    output
}

/// Runs a program; returns its output and whether it succeeded.
#[track_caller]
pub fn attempt(words: &[&str]) -> (String, bool) {
    let output = Command::new(words[0]).args(&words[1..]).output().expect(words[0]);
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&text).into_owned(), output.status.success())
}

/// Tells whether a program is installed; prints the skip line if it is not.
pub fn has(program: &str) -> bool {
    let paths = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    let found = paths.iter().any(|dir| Path::new(dir).join(program).try_exists().unwrap());
    if !found {
        penfold_testkit::skip(&format!("`{program}` is not installed"));
    }
    found
}

pub fn has_mount(point: &Path) -> bool {
    penfold_testkit::mounts::mounts().unwrap().iter().any(|mount| mount.point == point)
}

/// A process that holds something until it is ended.
pub struct Holder(Child);

impl Holder {
    /// Starts a shell whose script prints a line when it holds what it must, and then waits for the end of its input.
    pub fn shell(script: &str) -> Holder {
        let script = format!("{script}\necho ready; read line");
        Holder::start(Command::new("bash").args(["-c", &script]))
    }

    fn start(command: &mut Command) -> Holder {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let holder = Holder(child);
        assert_eq!(line, "ready\n");
        holder
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    #[track_caller]
    pub fn is_named_in(&self, held_by: &[String]) {
        let pid = format!("(pid {})", self.pid());
        assert!(held_by.iter().any(|holder| holder.contains(&pid)), "{held_by:?}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the holders that an error names.
#[track_caller]
pub fn holders(error: &ResourceError) -> &[String] {
    match error {
        ResourceError::Held { held_by, .. } | ResourceError::Remains { held_by, .. } => held_by,
        other => panic!("{other:?}"),
    }
}
