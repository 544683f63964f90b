//! `penfold logs`: what a detached sandbox has written, exact, in parts, followed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support_d::Yard;

impl Yard {
    /// Starts a script in a sandbox that goes on; gives the id.
    fn start_script(&self, script: &str) -> String {
        let words = ["run", "-d", "--timeout", "60s", "--", "sh", "-c", script];
        let output = self.penfold(words).current_dir(self.path("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Runs a script in a sandbox to its end; gives the id.
    fn ended(&self, script: &str) -> String {
        let id = self.start_script(script);
        assert!(self.output(&["logs", "-f", &id]).status.success());
        id
    }

    /// A fifo, and its end for writing: who reads it waits until that is gone.
    fn gate(&self, name: &str) -> std::fs::File {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, self.path(name), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        std::fs::File::options().read(true).write(true).open(self.path(name)).unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn has_ended(child: &Child, within: Duration) -> bool {
    let pid = rustix::process::Pid::from_child(child);
    let handle = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let timeout = rustix::event::Timespec::try_from(within).unwrap();
    let mut fds = [rustix::event::PollFd::new(&handle, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 1
}

#[track_caller]
fn ends(child: &mut Child, within: Duration) -> Option<i32> {
    let ended = has_ended(child, within);
    if !ended {
        let _ = child.kill();
    }
    let status = child.wait().unwrap();
    assert!(ended, "it goes on");
    status.code()
}

#[test]
fn bytes_of_both_streams_are_exact_and_apart() {
    let yard = Yard::new();
    let id = yard.ended("head -c 300000 /dev/urandom | tee copy; echo error >&2; printf end");
    let output = yard.output(&["logs", &id]);
    let mut expected = std::fs::read(yard.path("copy")).unwrap();
    expected.extend_from_slice(b"end");
    assert!(output.stdout == expected && expected.len() == 300_003);
    assert_eq!(text(&output.stderr), "error\n");
    let output = yard.output(&["logs", "--stderr", &id]);
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("error\n", ""));
}

#[test]
fn parts_and_forms_can_be_asked_for() {
    let yard = Yard::new();
    let id = yard.ended("seq 1 100");
    let said = |words: &[&str]| String::from_utf8(yard.output(words).stdout).unwrap();
    assert_eq!(said(&["logs", "-n", "2", &id[..8]]), "99\n100\n");
    assert_eq!(said(&["logs", "--since", "2100-01-01T00:00:00Z", &id]), "");
    assert_eq!(said(&["logs", "--since", "1h", &id]), said(&["logs", &id]));
    let timed = said(&["logs", "-t", "-n", "1", &id]);
    let (time, line) = timed.split_once(' ').unwrap();
    assert!(line == "100\n" && time.len() == 30 && time.ends_with('Z'));
    assert_eq!(said(&["logs", "--since", time, "-t", &id]).lines().last(), Some(timed.trim_end()));
    let objects = said(&["logs", "--json", &id]);
    let objects: Vec<serde_json::Value> =
        objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((objects.len(), &objects[99]["text"]), (100, &serde_json::json!("100\n")));
    assert_eq!((&objects[0]["stream"], &objects[0]["schema"]), (&"stdout".into(), &1.into()));
}

#[test]
fn followers_get_lines_as_they_come_and_end_with_the_sandbox() {
    let yard = Yard::new();
    let mut gate = yard.gate("gate");
    let id = yard.start_script(
        "echo first; while read -r word; do echo \"$word\"; [ $word = last ] && exit; done <gate",
    );
    let mut logs = yard.penfold(["logs", "-f", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(logs.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("first"));
    for word in ["second", "third", "last"] {
        let asked = Instant::now();
        writeln!(gate, "{word}").unwrap();
        assert_eq!(lines.next().as_deref(), Some(word));
        assert!(asked.elapsed() < Duration::from_secs(1));
    }
    assert_eq!(lines.next(), None);
    assert_eq!(ends(&mut logs, Duration::from_secs(10)), Some(0));
}

#[test]
fn a_follower_ends_quietly_when_nobody_reads_it() {
    let yard = Yard::new();
    let mut gate = yard.gate("gate");
    let id = yard.start_script("echo first; read -r _ <gate");
    let mut command = yard.penfold(["logs", "-f", &id]);
    let mut logs = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(logs.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    drop(reader);
    assert_eq!((line.as_str(), ends(&mut logs, Duration::from_secs(10))), ("first\n", Some(0)));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut logs.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(said, "");
    writeln!(gate, "go").unwrap();
    assert!(yard.output(&["logs", "-f", &id]).status.success());
}

#[test]
fn who_follows_and_does_not_read_holds_nobody_up() {
    let yard = Yard::new();
    let mut gate = yard.gate("gate");
    let id = yard.start_script("read -r _ <gate; head -c 20M /dev/zero; echo; echo done >&2");
    let mut stalled = yard.penfold(["logs", "-f", &id]);
    let stalled = stalled.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // It waits in the pipe for who is not there yet to read it.
    writeln!(gate, "go").unwrap();
    let output = yard.output(&["logs", "-f", "--stderr", &id]);
    assert_eq!(text(&output.stdout), "done\n");
    let late = stalled.wait_with_output().unwrap();
    assert_eq!((late.stdout.len(), late.status.code()), ((20 << 20) + 1, Some(0)));
}

#[test]
fn the_log_of_one_that_is_just_being_started_is_waited_for() {
    let yard = Yard::new();
    let gate = yard.gate("gate");
    let id = yard.start_script("echo hello; read x <gate");
    let mut follower = yard.penfold(["logs", "-f", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(follower.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "hello\n");
    // Its supervisor makes the log after the intent, and says what state it is in last.
    let move_file = |from: &str, to: &str| {
        let record = yard.path("root/sandboxes").join(&id);
        std::fs::rename(record.join(from), record.join(to)).unwrap();
    };
    move_file("log", "log.later");
    let output = yard.output(&["logs", &id]);
    assert_eq!(output.status.code(), Some(1), "it has said its state: {output:?}");
    assert!(text(&output.stderr).contains("has no log"), "{output:?}");
    move_file("state.json", "state.later");
    let mut early = yard.penfold(["logs", &id]).stdout(Stdio::piped()).spawn().unwrap();
    assert!(!has_ended(&early, Duration::from_millis(300)), "{:?}", early.wait());
    move_file("log.later", "log");
    assert_eq!(ends(&mut early, Duration::from_secs(20)), Some(0));
    move_file("state.later", "state.json");
    let output = early.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "hello\n");
    drop(gate);
    assert_eq!(ends(&mut follower, Duration::from_secs(20)), Some(0));
}

#[test]
fn what_is_wrong_is_said_with_its_code() {
    let yard = Yard::new();
    for (words, code) in [
        (&["logs", "nosuch"][..], 3),
        (&["logs", ""], 3),
        (&["logs"], 2),
        (&["logs", "--since", "soon", "x"], 2),
        (&["logs", "-n", "-1", "x"], 2),
    ] {
        let output = yard.output(words);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{words:?}");
        assert!(text(&output.stderr).starts_with("penfold: "), "{words:?}");
    }
}

/// It goes on writing while what it wrote is put away.
#[test]
fn command_that_writes_much_gets_a_wider_pipe() {
    let yard = Yard::new();
    let script = "import fcntl, os\n\
        size = lambda: fcntl.fcntl(1, fcntl.F_GETPIPE_SZ)\n\
        narrow, left = size(), 1 << 30\n\
        while left and size() == narrow: left -= os.write(1, bytes(min(left, 1 << 16)))\n\
        print(size() > narrow, file=open('wide', 'w'))\n";
    std::fs::write(yard.path("script"), script).unwrap();
    yard.ended("exec python3 script");
    assert_eq!(std::fs::read_to_string(yard.path("wide")).unwrap(), "True\n");
}
