//! What a command of the same user can try against what looks after it, and what other users see.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use crate::support_e2::{DEADLINE, Pen, Talk, eventually, pause, root};
use crate::support_g::wire::Peer;
use crate::support_g::{Actor, USER};

/// A sandbox whose command is this script, with its record as `$R`; it goes on while there is no file `go`.
const RECORD: &str = "R=$ROOT/sandboxes/$PENFOLD_SANDBOX;";

fn script(pen: &Pen, script: &str) -> String {
    format!("{} {script}", RECORD.replace("$ROOT", &pen.path("root").display().to_string()))
}

#[test]
fn record_is_for_its_owner_alone() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--name", "web", "--", "sleep", "4401"]);
    let own = rustix::process::geteuid().as_raw();
    for path in
        [pen.path("root/sandboxes"), pen.path("root/names"), sandbox.record(), sandbox.record().join("log")]
    {
        let meta = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.permissions().mode() & 0o077), (own, 0), "{}", path.display());
    }
    for name in ["intent.json", "state.json"] {
        let meta = std::fs::symlink_metadata(sandbox.record().join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "{name}");
    }
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn ids_are_names_before_they_are_paths() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    std::fs::create_dir_all(pen.path("root/sandboxes")).unwrap();
    std::fs::write(pen.path("root/intent.json"), "{}").unwrap();
    for id in ["..", ".", "../../work", "/", "", "a/b", "web\n", "*", "%s"] {
        let lines = [
            (&["rm", "-f", id][..], 3),
            (&["kill", id], 3),
            (&["exec", id, "touch", "ran"], 125),
            (&["attach", id], 125),
        ];
        for (words, code) in lines {
            let ended = Talk::start(&mut actor.verb(words)).end();
            assert_eq!(ended.code(), Some(code), "{words:?}: {}", ended.err());
        }
    }
    assert!(pen.path("root/intent.json").try_exists().unwrap() && pen.path("work").try_exists().unwrap());
}

#[test]
fn linked_or_foreign_records_are_not_followed() {
    if !root() {
        return;
    }
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4402"]);
    let linked = pen.path("root/sandboxes/0123456789ab");
    std::os::unix::fs::symlink(sandbox.record(), &linked).unwrap();
    let foreign = pen.path("root/sandboxes/ba9876543210");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::copy(sandbox.record().join("intent.json"), foreign.join("intent.json")).unwrap();
    std::os::unix::fs::chown(&foreign, Some(USER), Some(USER)).unwrap();
    for id in ["0123456789ab", "ba9876543210"] {
        let ended = Talk::start(&mut actor.verb(["exec", id, "touch", "ran"])).end();
        assert!(matches!(ended.code(), Some(3 | 7 | 125)), "{id}: {:?} {}", ended.code(), ended.err());
        Talk::start(&mut actor.verb(["rm", "-f", id])).end();
    }
    assert!(pen.is_running("sleep 4402") && sandbox.record().join("intent.json").try_exists().unwrap());
    assert!(!pen.path("work/ran").try_exists().unwrap());
    let _ = std::fs::remove_file(linked);
    let _ = crate::support_g::remove(&foreign);
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn linked_files_of_a_record_are_not_read() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    // What the link points at would be believed in the place of the file.
    let link = |path: &std::path::Path, text: String| {
        let real = pen.path("work").join(path.file_name().unwrap());
        std::fs::write(&real, text).unwrap();
        let _ = std::fs::remove_file(path);
        std::os::unix::fs::symlink(&real, path).unwrap();
    };
    let sandbox = actor.detach(&["--", "sh", "-c", "until [ -e go ]; do sleep 0.02; done; exit 7"]);
    let state = sandbox.record().join("state.json");
    let said = std::fs::read_to_string(&state).unwrap();
    assert!(said.contains("\"running\""), "{said}");
    link(&state, said.replace("\"running\"", "\"stopping\""));
    let seen = sandbox.ask(&["inspect", "ID"]).with_code(0).out();
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen[0]["status"], "running", "{seen}");
    assert!(seen[0]["damage"].to_string().contains("symbolic link"), "{seen}");
    std::fs::write(pen.path("work/go"), "").unwrap();
    sandbox.over();
    let forged = "{\"schema\":1,\"exit\":{\"code\":0},\"cause\":\"exit\",\"at_ms\":1}";
    link(&sandbox.record().join("exit.json"), forged.to_owned());
    sandbox.ask(&["wait", "ID"]).with_code(7);
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn ordinary_user_neither_sees_nor_ends_a_sandbox_of_root() {
    if !root() {
        return;
    }
    let (pen, other) = (Pen::new(), Pen::new());
    let (own, user) = (Actor::own(&pen), Actor::user(&other).unwrap());
    let sandbox = own.detach(&["--name", "web", "--", "sleep", "4403"]);
    for path in [pen.path(""), pen.path("root")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let root = pen.path("root").display().to_string();
    let verbs = [
        &["kill", "web"][..],
        &["stop", "web"],
        &["rm", "-f", "web"],
        &["exec", "web", "true"],
        &["gc", "-f"],
    ];
    for words in verbs {
        let ended = Talk::start(user.verb([words[0]]).args(["--root", &root]).args(&words[1..])).end();
        assert!(words[0] == "gc" || ended.code() != Some(0), "{words:?}");
        assert!(pen.is_running("sleep 4403"), "{words:?}");
    }
    let seen = Talk::start(user.verb(["ps"]).args(["--root", &root, "-a", "-q"])).end().out();
    assert!(!seen.contains(&sandbox.id), "{seen}");
    // Even where the directories let it in, the supervisor does not.
    for path in ["root/sandboxes", &format!("root/sandboxes/{}", sandbox.id)] {
        std::fs::set_permissions(pen.path(path), std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    std::fs::set_permissions(sandbox.record().join("control.sock"), std::fs::Permissions::from_mode(0o777))
        .unwrap();
    let talk = "import socket,sys\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\ns.connect(sys.argv[1])\ntry:\n s.send(b'\"kill\"')\n print(s.recv(1000))\nexcept OSError as e: print(e)";
    let mut client = other.command("setpriv");
    client.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "python3", "-c", talk]);
    client.env("PATH", "/usr/bin:/bin");
    let heard = Talk::start(client.arg(sandbox.record().join("control.sock"))).end();
    assert!(!heard.out().contains("hello"), "{} {}", heard.out(), heard.err());
    assert!(heard.out().contains("b''") || heard.out().contains("Errno"), "{} {}", heard.out(), heard.err());
    pause(Duration::from_millis(100));
    assert!(pen.is_running("sleep 4403") && Peer::greeted(&sandbox.record(), DEADLINE).is_ok());
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn command_gets_no_descriptor_of_ours() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    // A glob opens the directory as one more.
    let list = "for fd in /proc/self/fd/*; do echo fd:${fd##*/}:$(readlink $fd); done; echo end";
    for level in actor.levels() {
        for terminal in [&[][..], &["-t"]] {
            let shown = format!("{list}; sleep 4404");
            let words = [&["--contain", level], terminal, &["--", "bash", "-c", &shown]].concat();
            let sandbox = actor.detach(&words);
            let logged = || sandbox.ask(&["logs", "ID"]).out().contains("end");
            assert!(eventually(DEADLINE, logged));
            let mut seen = vec![("run -d", sandbox.ask(&["logs", "ID"]).out())];
            let put = |flags: &[&str]| {
                Talk::start(&mut sandbox.exec_command(flags, &["bash", "-c", list])).end().out()
            };
            seen.extend([("exec", put(&[])), ("exec -t", put(&["-t"])), ("exec -i", put(&["-i"]))]);
            for (what, text) in seen {
                let count = text.matches("fd:").count();
                let ours = ["socket", "anon_inode", "penfold", "sandboxes", "cgroup"]
                    .iter()
                    .any(|word| text.contains(word));
                assert!((3..=4).contains(&count) && !ours, "{level} {terminal:?} {what}: {text}");
            }
            sandbox.end();
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn command_gets_the_marker_and_no_other_variable_of_ours() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let mut run = actor.verb(["run", "-d", "--", "sleep", "4405"]);
    run.env("PENFOLD_TOKEN", "secret").env("PENFOLD_ROOT_TOKEN", "secret");
    let ended = Talk::start(&mut run).end().with_code(0);
    let sandbox = crate::support_g::Sandbox { actor: &actor, id: ended.out().trim().to_owned() };
    let mut exec = sandbox.exec_command(&[], &["env"]);
    let seen = Talk::start(exec.env("PENFOLD_TOKEN", "other")).end().with_code(0).out();
    let ours: Vec<&str> = seen.lines().filter(|line| line.starts_with("PENFOLD_")).collect();
    let known =
        |line: &&str| line.starts_with("PENFOLD_SANDBOX=") || line.starts_with(crate::support_e2::MARK);
    assert!(ours.iter().all(known), "{ours:?}");
    // What is named is meant.
    let mut named = actor.verb(["run", "-e", "PENFOLD_TOKEN", "--", "sh", "-c", "echo $PENFOLD_TOKEN"]);
    assert_eq!(Talk::start(named.env("PENFOLD_TOKEN", "secret")).end().out(), "secret\n");
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn forged_exit_code_is_replaced_and_the_report_says_so() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let forge = "echo '{\"schema\":1,\"exit\":{\"code\":0},\"cause\":\"exit\",\"at_ms\":1}' > $R/exit.json; echo '{}' > $R/report.json; ";
    for level in actor.levels() {
        let command = script(&pen, &format!("{forge} exit 7"));
        let sandbox = actor.detach(&["--contain", level, "--", "sh", "-c", &command]);
        sandbox.ask(&["wait", "ID"]).with_code(7);
        let report = sandbox.over();
        assert_eq!(report["exit"]["code"], 7, "{level}: {report}");
        assert!(report["missing"].to_string().contains("exit.json"), "{level}: {report}");
        sandbox.end();
    }
    pen.assert_nothing_left();
}

#[test]
fn command_that_kills_its_supervisor_invents_no_code() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    for level in actor.levels().into_iter().filter(|&level| level != "pidns") {
        let forge =
            "echo '{\"schema\":1,\"exit\":{\"code\":0},\"cause\":\"exit\",\"at_ms\":1}' > $R/exit.json";
        let go = "until [ -e go ]; do sleep 0.05; done";
        let command =
            script(&pen, &format!("setsid sleep 4406 & {forge}; {go}; kill -KILL $PPID; sleep 4407"));
        let sandbox = actor.detach(&["--contain", level, "--", "sh", "-c", &command]);
        // Not before its caller knows of it.
        std::fs::write(pen.path("work/go"), "").unwrap();
        let report = sandbox.over();
        assert_ne!(report["exit"]["code"], 0, "{level}: {report}");
        assert_eq!(report["cause"], "supervisor", "{level}: {report}");
        assert_ne!(sandbox.ask(&["wait", "ID"]).code(), Some(0), "{level}");
        assert!(!pen.is_running("sleep 4406") && !pen.is_running("sleep 4407"), "{level}");
        std::fs::remove_file(pen.path("work/go")).unwrap();
        sandbox.end();
    }
    pen.assert_nothing_left();
}

#[test]
fn whatever_a_command_does_to_our_files_its_tree_still_ends() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let attempts = [
        "rm -rf $R",
        "rm -f $R/control.sock $R/state.json",
        "for f in $R/*.json; do echo garbage > $f; done",
        "echo '{\"schema\":1,\"word\":\"exited\",\"supervisors\":[{\"pid\":1,\"start\":1}],\"level\":\"cgroup\",\"started_at_ms\":1}' > $R/state.json",
        "mv $R $R.away",
        "exec 9<$R; flock -s -n 9; true",
        "kill -STOP $PPID",
        "for g in /sys/fs/cgroup /sys/fs/cgroup/unified; do echo $$ > $g/cgroup.procs; done 2>/dev/null",
    ];
    for level in actor.levels() {
        for attempt in attempts {
            let command = script(&pen, &format!("setsid sleep 4408 & {attempt}; sleep 4409"));
            let sandbox = actor.detach(&["--contain", level, "--name", "web", "--", "bash", "-c", &command]);
            assert!(eventually(DEADLINE, || pen.is_running("sleep 4408") && pen.is_running("sleep 4409")));
            let ended = sandbox.ask(&["kill", "ID"]);
            assert_eq!(ended.code(), Some(0), "{level} `{attempt}`: {}", ended.err());
            assert!(!pen.is_running("sleep 4408") && !pen.is_running("sleep 4409"), "{level} `{attempt}`");
            sandbox.ask(&["rm", "-f", "ID"]);
            let away = format!("{}.away", sandbox.record().display());
            let _ = crate::support_g::remove(away.as_ref());
            let _ = crate::support_g::remove(&sandbox.record());
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn who_answers_in_the_supervisor_s_place_is_not_talked_to() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let lie = "import os,socket,sys\np=sys.argv[1]+'/control.sock'\nos.unlink(p)\ns=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\ns.bind(p)\ns.listen(9)\nopen('lies','w')\nwhile 1:\n c,_=s.accept()\n try:\n  c.send(b'{\"hello\":{\"protocol\":1,\"id\":\"'+os.environ['PENFOLD_SANDBOX'].encode()+b'\"}}')\n  c.recv(9999)\n  c.send(b'\"running\"')\n  keep=globals().setdefault('keep',[]); keep.append(c)\n except OSError: pass\n";
    std::fs::write(pen.path("work/lie.py"), lie).unwrap();
    for level in actor.levels() {
        let command = script(&pen, "exec python3 lie.py $R");
        let sandbox = actor.detach(&["--contain", level, "--", "sh", "-c", &command]);
        assert!(eventually(DEADLINE, || pen.path("work/lies").try_exists().unwrap()), "nobody lies");
        let ended = sandbox.exec(&["true"]);
        assert!(ended.err().contains("not to be trusted"), "{level}: {}", ended.err());
        ended.refused(125, "cannot be asked");
        sandbox.ask(&["kill", "ID"]).with_code(0);
        assert!(pen.running("python3 lie.py").is_empty());
        std::fs::remove_file(pen.path("work/lies")).unwrap();
        sandbox.end();
    }
    pen.assert_nothing_left();
}
