//! Start and end of a command that does nothing, alone and within other tools.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_state::error_chain;
use rustix::fs::{Gid, Uid};

use crate::contender::{Contender, Outcome, named, race};
use crate::document::Section;
use crate::error::Error;
use crate::floor::{self, Leaf};
use crate::table::{Table, ratio, unmeasured, verdict};
use crate::tools::{Tools, find, last_words};
use crate::{Args, talk};

/// The argument that makes this program do nothing, in a container without any other program.
pub(crate) const NOTHING: &str = "nothing";
/// The argument that makes this program measure as the current user: `bench VERB PENFOLD ROUNDS`.
pub(crate) const AS_USER: &str = "run-as-user";

/// `nobody`, a user of every host.
const USER: u32 = 65534;
const TRUE: &str = "/bin/true";
const PENFOLD: &str = "penfold run";
const TIMEOUT: &str = "timeout 10";
const BWRAP: &str = "bwrap --bind / / --unshare-pid --die-with-parent";
const PLAIN: &str = "plain spawn";

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let rounds = args.rounds(crate::ROUNDS);
    talk(&format!("run: {rounds} rounds"));
    let own = race(everyday(|| tools.run(&[])), rounds)?;
    // A contender that takes ten times as long leaves cold caches for the next, so these have a race of their own.
    let slow = race(slow(tools), rounds)?;
    let mut body = format!(
        "Milliseconds from spawn to exit of `{TRUE}`, {rounds} rounds, p50 (p90). Each table has its own rounds.\n\n"
    );
    if !rustix::process::geteuid().is_root() {
        body.push_str(&table("As this ordinary user", &own));
        return Ok(section(body));
    }
    body.push_str(&table("As root", &own));
    body.push_str(&verdicts("as root", &own, &QUICK));
    body.push('\n');
    body.push_str(&table("As root, in turns with container tools", &slow));
    body.push_str(&verdicts("as root", &slow, &SLOW));
    body.push('\n');
    talk("run: as an ordinary user");
    for (title, delegated) in
        [("As an ordinary user with a delegated cgroup", true), ("As an ordinary user without one", false)]
    {
        match for_user(tools, rounds, delegated) {
            Ok(outcomes) => {
                body.push_str(&table(title, &outcomes));
                body.push_str(&verdicts("as a user", &outcomes, &QUICK));
                body.push('\n');
            }
            Err(error) => {
                unmeasured(&mut body, title, error_chain(&error));
                body.push('\n');
            }
        }
    }
    Ok(section(body))
}

fn section(body: String) -> Section {
    Section { name: "run", title: "Start and end of a command", body, ..Section::default() }
}

/// The contenders that any user can run.
fn everyday(run: impl Fn() -> Command) -> Vec<Contender> {
    let peer = |name: &str, words: &[&str]| {
        let mut command = Command::new(words.first().copied().unwrap_or(TRUE));
        command.args(words.iter().skip(1));
        if !words.is_empty() {
            command.arg(TRUE);
        }
        Contender::new(name, command)
    };
    let ours = |name: &str, options: &[&str]| {
        let mut command = run();
        command.args(options).arg(TRUE);
        Contender::new(name, command)
    };
    let bwrap: Vec<&str> = BWRAP.split(' ').collect();
    vec![
        peer(PLAIN, &[]),
        peer("setsid -w", &["setsid", "-w"]),
        peer(TIMEOUT, &["timeout", "10"]),
        peer("tini -s", &["tini", "-s"]),
        peer("dumb-init", &["dumb-init"]),
        ours(PENFOLD, &[]),
        ours("penfold run --contain subreaper", &["--contain", "subreaper"]),
        ours("penfold run --contain pidns", &["--contain", "pidns"]),
        peer(BWRAP, &bwrap),
    ]
}

/// The slow contenders, which need root, and the contenders for comparison.
fn slow(tools: &Tools) -> Vec<Contender> {
    let mut firejail = Command::new("firejail");
    firejail.args(["--quiet", "--noprofile", TRUE]);
    let compared = everyday(|| tools.run(&[]))
        .into_iter()
        .filter(|one| [PLAIN, TIMEOUT, PENFOLD].contains(&one.name.as_str()));
    let firejail = Contender::new("firejail --quiet --noprofile", firejail);
    compared.chain([firejail]).chain(containers(tools)).collect()
}

/// Container runtimes, with a bundle from the runtime itself and this program as the command.
fn containers(tools: &Tools) -> Vec<Contender> {
    ["crun", "runc"]
        .into_iter()
        .filter_map(|name| {
            let program = find(name).unwrap_or_else(|| PathBuf::from(name));
            let bundle = tools.dir().join(name);
            if find(name).is_some()
                && let Err(error) = write_bundle(tools, &program, &bundle)
            {
                talk(&format!("run: no bundle for {name}: {}", error_chain(&error)));
                return None;
            }
            let mut command = Command::new(&program);
            command.arg("--root").arg(tools.dir().join(format!("{name}-state")));
            command.arg("run").arg("--bundle").arg(&bundle).arg("penfold-bench");
            Some(Contender::new(&format!("{name} run"), command))
        })
        .collect()
}

fn write_bundle(tools: &Tools, program: &Path, bundle: &Path) -> Result<(), Error> {
    let root = bundle.join("rootfs");
    std::fs::create_dir_all(&root).map_err(Error::at("create", &root))?;
    let command = root.join("bench");
    std::fs::copy(&tools.bench, &command).map_err(Error::at("create", &command))?;
    let output = Command::new(program).arg("spec").current_dir(bundle).output();
    let output = output.map_err(|source| Error::io("cannot get a bundle", source))?;
    if !output.status.success() {
        return Err(Error::odd(last_words(&output.stderr)));
    }
    let path = bundle.join("config.json");
    let text = std::fs::read(&path).map_err(Error::at("read", &path))?;
    let mut config: serde_json::Value = serde_json::from_slice(&text)
        .map_err(|error| Error::io("cannot read `config.json`", error.into()))?;
    for (pointer, value) in
        [("/process/terminal", false.into()), ("/process/args", serde_json::json!(["/bench", NOTHING]))]
    {
        *config
            .pointer_mut(pointer)
            .ok_or_else(|| Error::odd(format!("no `{pointer}` in `config.json`")))? = value;
    }
    std::fs::write(&path, config.to_string()).map_err(Error::at("write", &path))
}

/// Lets this program measure as an ordinary user, with a runtime directory as in a session.
fn for_user(tools: &Tools, rounds: u32, delegated: bool) -> Result<Vec<Outcome>, Error> {
    let runtime = tools.volatile().join(if delegated { "delegated" } else { "user" });
    std::fs::create_dir(&runtime).map_err(Error::at("create", &runtime))?;
    give(&runtime)?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &USER.to_string(), "--regid", &USER.to_string(), "--clear-groups"]);
    command.arg(&tools.bench).arg(AS_USER).arg(&tools.penfold).arg(rounds.to_string());
    command.env("XDG_RUNTIME_DIR", &runtime);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let cannot = |source| Error::io("cannot run `setpriv`", source);
    let (child, leaf) = if delegated {
        let place = floor::place().map_err(Error::odd)?;
        let leaf = Leaf::create(&place, USER)?;
        for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            give(&leaf.path().join(name))?;
        }
        let joined = leaf.processes()?;
        (penfold_sys::launch::spawn_joined(&mut command, joined).map_err(cannot)?, Some(leaf))
    } else {
        (command.spawn().map_err(cannot)?, None)
    };
    let output = child.wait_with_output().map_err(cannot)?;
    drop(leaf);
    if !output.status.success() {
        return Err(Error::Failed {
            program: "bench as an ordinary user".to_owned(),
            status: output.status,
            said: "see above".to_owned(),
        });
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Error::io("cannot read the user's times", error.into()))
}

fn give(path: &Path) -> Result<(), Error> {
    let (user, group) = (Uid::from_raw(USER), Gid::from_raw(USER));
    rustix::fs::chown(path, Some(user), Some(group)).map_err(Error::at("give away", path))
}

/// The measurement in the process that [`for_user`] starts.
pub(crate) fn as_user(mut words: impl Iterator<Item = String>) -> Result<(), Error> {
    let penfold = PathBuf::from(words.next().unwrap_or_default());
    let rounds = words.next().and_then(|word| word.parse().ok()).unwrap_or(1);
    let outcomes = race(
        everyday(|| {
            let mut command = Command::new(&penfold);
            command.arg("run");
            command
        }),
        rounds,
    )?;
    let text =
        serde_json::to_string(&outcomes).map_err(|error| Error::io("cannot write times", error.into()))?;
    crate::print(&text)
}

fn table(title: &str, outcomes: &[Outcome]) -> String {
    let mut table = Table::new([title, "p50 (p90) ms", "× plain", "× timeout"]);
    let of = |name: &str| named(outcomes, name).map(|outcome| &outcome.samples);
    let mut missing = String::new();
    for outcome in outcomes {
        if let Some(reason) = &outcome.skipped {
            unmeasured(&mut missing, &outcome.name, reason);
            continue;
        }
        let times = |other: Option<_>| ratio(other.and_then(|other| outcome.samples.times(other)));
        table.row([
            format!("`{}`", outcome.name),
            outcome.samples.cell(),
            times(of(PLAIN)),
            times(of(TIMEOUT)),
        ]);
    }
    format!("{}{missing}\n", table.markdown())
}

/// The peer, its name in the text, and the highest ratio of penfold's time to its time.
type Limit = (&'static str, &'static str, f64);
const QUICK: [Limit; 2] = [(TIMEOUT, "timeout", 1.3), (BWRAP, "bwrap", 1.0)];
const SLOW: [Limit; 2] = [("crun run", "crun run", 0.1), ("runc run", "runc run", 0.1)];

fn verdicts(who: &str, outcomes: &[Outcome], limits: &[Limit]) -> String {
    let verdict = |&(peer, called, most): &Limit| {
        let peer = named(outcomes, peer)?;
        let times = named(outcomes, PENFOLD).and_then(|own| own.samples.times(&peer.samples));
        Some(verdict(&format!("{PENFOLD} {who}"), &format!(" × {called}"), most, times))
    };
    limits.iter().filter_map(verdict).collect()
}
