//! Hostile trees below both APIs × ways to end them: no survivor when the answer comes, and a truthful status.
//!
//! Each run of the suite tries every tree once and every ending at least twice. The seed `PENFOLD_MATRIX_SEED` draws the
//! pairs. Any other pair runs by its name.

use std::time::Duration;

use penfold_harness::{Generated, Trial};
use penfold_testkit::catalog::{self, Entry, Pace, TREES};
use penfold_testkit::proc::{self, Identity};
use penfold_testkit::{sweep, until};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::Server;
use super::cloudflare::{Api, Told};
use super::native;
use crate::hostile::matrix::seed;
use crate::support::{DEADLINE, Prng, Process, TestEnv, Who, fresh_id};

/// Time limits in milliseconds, tried one after the other: the tree must stand before the limit is over.
const LIMITS: [u64; 3] = [700, 2000, 6000];
/// The grace of a stop on the native API.
const GRACE: u64 = 100;

/// The request that ends the tree, and the place where the tree runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Native: the tree is the command of a sandbox.
    Stop,
    Kill,
    Delete,
    Timeout,
    KillAfterRestart,
    /// Native: the tree is an exec.
    ExecStop,
    ExecKill,
    ExecKillAfterRestart,
    /// Native: the tree is a command of a session.
    SessionDelete,
    SessionTimeout,
    /// Cloudflare: the tree is a process.
    ProcessKill,
    ProcessKillAll,
    ProcessSessionDelete,
    ProcessKillAfterRestart,
    /// Cloudflare: the tree is a command of the session.
    ExecuteSessionDelete,
    ExecuteTimeout,
    /// Cloudflare: the tree is a job that a command of the session has left.
    JobSessionDelete,
    JobSessionDeleteAfterRestart,
    /// Cloudflare: the tree is a command without a session.
    SessionlessTimeout,
}

const NATIVE: &[(Ending, &str)] = &[
    (Ending::Stop, "stop"),
    (Ending::Kill, "kill"),
    (Ending::Delete, "delete"),
    (Ending::Timeout, "timeout"),
    (Ending::KillAfterRestart, "kill_after_restart"),
    (Ending::ExecStop, "exec_stop"),
    (Ending::ExecKill, "exec_kill"),
    (Ending::ExecKillAfterRestart, "exec_kill_after_restart"),
    (Ending::SessionDelete, "session_delete"),
    (Ending::SessionTimeout, "session_timeout"),
];

const CLOUDFLARE: &[(Ending, &str)] = &[
    (Ending::ProcessKill, "process_kill"),
    (Ending::ProcessKillAll, "process_kill_all"),
    (Ending::ProcessSessionDelete, "process_session_delete"),
    (Ending::ProcessKillAfterRestart, "process_kill_after_restart"),
    (Ending::ExecuteSessionDelete, "execute_session_delete"),
    (Ending::ExecuteTimeout, "execute_timeout"),
    (Ending::JobSessionDelete, "job_session_delete"),
    (Ending::JobSessionDeleteAfterRestart, "job_session_delete_after_restart"),
    (Ending::SessionlessTimeout, "sessionless_timeout"),
];

/// A tree and its ending.
#[derive(Debug, Clone, Copy)]
struct Case {
    tree: &'static Entry,
    ending: Ending,
    word: &'static str,
}

impl Case {
    fn name(self) -> String {
        format!("serve::hostile::{}::{}", self.tree.name, self.word)
    }

    fn parse(name: &str) -> Option<Case> {
        let (tree, word) = name.strip_prefix("serve::hostile::")?.split_once("::")?;
        let &(ending, word) = NATIVE.iter().chain(CLOUDFLARE).find(|(_, known)| *known == word)?;
        let tree = catalog::find(tree).filter(|tree| fits(tree))?;
        Some(Case { tree, ending, word })
    }

    fn run(self) -> Result<(), String> {
        let mut last = Ok(());
        for limit in LIMITS {
            let Some(env) = TestEnv::of(Who::Root) else { return Ok(()) };
            let server = serve(&env);
            let mut room = Room::new(Api { env, server }, self, limit);
            last = room.run();
            if last.is_ok() && !until(DEADLINE, || room.api.env.left().is_empty()) {
                return Err(format!("left: {:?}", room.api.env.left()));
            }
            // The limit was over before the tree stood.
            if !(last.is_err() && room.members.is_empty() && self.word.contains("timeout")) {
                break;
            }
        }
        last
    }

    fn trial(self) -> Trial {
        Trial::test(self.name(), move || self.run().map_err(Into::into))
    }
}

/// A leader that exits at once leaves nothing to end, and the server runs as root.
fn fits(tree: &Entry) -> bool {
    tree.pace != Pace::Hasty && tree.name != "setuid-root"
}

fn serve(env: &TestEnv) -> Server {
    Server::start(env, &["--api", "native,cloudflare"])
}

/// The tests of this file.
pub const TESTS: Generated = Generated {
    list: || {
        let mut prng = Prng::of(seed());
        let mut trees: Vec<&Entry> = TREES.iter().filter(|tree| fits(tree)).collect();
        prng.shuffle(&mut trees);
        // Each ending as often as the others.
        let endings = NATIVE.iter().chain(CLOUDFLARE).cycle();
        let pairs = trees.into_iter().zip(endings);
        pairs.map(|(tree, &(ending, word))| Case { tree, ending, word }.trial()).collect()
    },
    find: |name| Case::parse(name).map(Case::trial),
};

/// A server with one tree.
struct Room {
    api: Api,
    case: Case,
    /// In the command lines of the tree's processes.
    cookie: String,
    members: Vec<Process>,
    /// The time limit of a command, in milliseconds.
    limit: u64,
}

/// Some trees make cgroups outside of the leaf, which are theirs.
impl Drop for Room {
    fn drop(&mut self) {
        let gone = until(DEADLINE, || {
            let left = sweep::cgroups(&self.cookie);
            left.iter().rev().for_each(|cgroup| drop(std::fs::remove_dir(cgroup)));
            left.is_empty()
        });
        assert!(gone || std::thread::panicking(), "cgroups of the tree are left: {}", self.cookie);
    }
}

/// An error with a body, unless this holds.
fn expect(is_so: bool, what: &str, told: &Value) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(format!("{what}: {told}")) }
}

impl Room {
    fn new(api: Api, case: Case, limit: u64) -> Room {
        Room { api, case, cookie: fresh_id(), members: Vec::new(), limit }
    }

    /// The command line of the tree.
    fn words(&self) -> Vec<String> {
        let testkit = penfold_testkit::binary().unwrap();
        let own = proc::this().unwrap().id.pid;
        let spare: Vec<String> = proc::ancestors(own).iter().map(ToString::to_string).collect();
        let ready = self.api.path("ready");
        [testkit.to_str().unwrap(), "hostile", self.case.tree.name, "--ready", &ready, "--cookie"]
            .into_iter()
            .chain([self.cookie.as_str(), "--spare", &spare.join(",")])
            .map(str::to_owned)
            .collect()
    }

    /// The tree for a shell.
    fn line(&self) -> String {
        format!("{}; true", self.words().join(" "))
    }

    /// Waits until the tree stands and lives. False where this host cannot build it.
    fn stands(&mut self) -> Result<bool, String> {
        let (ready, skip) = (self.api.path("ready"), self.api.path("ready.skip"));
        let is_there = || [&ready, &skip].into_iter().any(|path| std::fs::exists(path).unwrap());
        if !until(DEADLINE, is_there) {
            return Err("the tree does not stand".to_owned());
        }
        let Ok(list) = std::fs::read_to_string(&ready) else {
            penfold_testkit::skip(&std::fs::read_to_string(&skip).unwrap_or_default());
            return Ok(false);
        };
        let told: Vec<Identity> =
            list.lines().filter_map(|line| line.replace(' ', ":").parse().ok()).collect();
        let own = proc::this().unwrap().id.pid;
        let mut found = Vec::new();
        // A look misses a process whose parent exits meanwhile.
        let complete = until(Duration::from_secs(2), || {
            found = proc::resolve(&told, own);
            !found.is_empty() && !found.contains(&None)
        });
        let members: Vec<Process> = found.into_iter().flatten().filter_map(Process::open).collect();
        let dead = members.iter().filter(|member| member.has_ended()).count();
        if !complete || dead > 0 || members.is_empty() {
            return Err(format!("{dead} of {} members are dead before the end", told.len()));
        }
        self.members = members;
        Ok(true)
    }

    /// The processes of the tree that live.
    fn survivors(&self) -> Vec<String> {
        let line = |process: &Process| format!("{} {}", process.id(), process.command_line());
        let ours = self.api.env.processes();
        let known = self.members.iter().filter(|member| !member.has_ended()).map(line);
        let found = ours.iter().filter(|process| process.command_line().contains(&self.cookie));
        known.chain(found.filter(|process| !process.has_ended()).map(line)).collect()
    }

    fn gone(&self) -> Result<(), String> {
        let survivors = [self.survivors(), self.survivors()].concat();
        if survivors.is_empty() { Ok(()) } else { Err(format!("survivors: {survivors:?}")) }
    }

    /// SIGKILL to the server, and another one.
    fn replace_server(&mut self) -> Result<(), String> {
        self.api.server.running.signal(Signal::KILL);
        self.api.server.running.process().await_end();
        if self.members.iter().any(Process::has_ended) {
            return Err("the death of the server has hit a member".to_owned());
        }
        let fresh = serve(&self.api.env);
        std::mem::replace(&mut self.api.server, fresh).running.finish().with_code(137);
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        match self.case.ending {
            Ending::Stop | Ending::Kill | Ending::Delete | Ending::Timeout | Ending::KillAfterRestart => {
                self.sandbox()
            }
            Ending::ExecStop | Ending::ExecKill | Ending::ExecKillAfterRestart => self.exec(),
            Ending::SessionDelete | Ending::SessionTimeout => self.session(),
            Ending::ProcessKill
            | Ending::ProcessKillAll
            | Ending::ProcessSessionDelete
            | Ending::ProcessKillAfterRestart => self.process(),
            Ending::ExecuteSessionDelete | Ending::ExecuteTimeout => self.execute(),
            Ending::JobSessionDelete | Ending::JobSessionDeleteAfterRestart => self.job(),
            Ending::SessionlessTimeout => self.sessionless(),
        }
    }

    fn sandbox(&mut self) -> Result<(), String> {
        let ending = self.case.ending;
        let mut body = json!({ "command": self.words(), "inherit_env": true, "grace_ms": GRACE });
        if ending == Ending::Timeout {
            body["timeout_ms"] = self.limit.into();
        }
        let made = native::create(&self.api.server, &body);
        let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
        if self.stands()? {
            if ending == Ending::KillAfterRestart {
                self.replace_server()?;
            }
            let server = &self.api.server;
            let (verb, cause) = match ending {
                Ending::Stop => ("/stop", "stop"),
                Ending::Delete => ("", "kill"),
                Ending::Timeout => ("/wait", "timeout"),
                _ => ("/kill", "kill"),
            };
            let method = match verb {
                "" => "DELETE",
                "/wait" => "GET",
                _ => "POST",
            };
            let ended = native::ask(server, method, &format!("{path}{verb}"), "", b"").with(200).json();
            self.gone()?;
            if ending == Ending::Timeout {
                expect(ended["ended"] == true && ended["cause"] == cause, "the end", &ended)?;
                let report = native::get(server, &format!("{path}/report")).with(200).json();
                expect(report["verified"] == true, "the report", &report)?;
            } else {
                let is_so = ended["result"] == "gone"
                    && ended["report"]["verified"] == true
                    && ended["report"]["cause"] == cause
                    && ended["report"]["survivors"] == json!([]);
                expect(is_so, "the end", &ended)?;
            }
        }
        native::delete(&self.api.server, &path).with(200);
        Ok(())
    }

    fn exec(&mut self) -> Result<(), String> {
        let id = native::script(&self.api.server, "exec sleep 600");
        let path = format!("/v1/sandboxes/{id}");
        let body = json!({ "command": self.words(), "grace_ms": GRACE });
        let made = native::post(&self.api.server, &format!("{path}/execs"), &body).with(201).json();
        let exec = format!("{path}/execs/{}", made["number"]);
        if self.stands()? {
            if self.case.ending == Ending::ExecKillAfterRestart {
                self.replace_server()?;
            }
            let running = native::get(&self.api.server, &exec).with(200).json();
            expect(running["status"] == "running", "before", &running)?;
            let verb = if self.case.ending == Ending::ExecStop { "stop" } else { "kill" };
            let ended = native::ask(&self.api.server, "POST", &format!("{exec}/{verb}"), "", b"");
            let ended = ended.with(200).json();
            self.gone()?;
            let is_so = ended["result"] == "gone" && ended["report"]["verified"] == true;
            expect(is_so && ended["cause"] == verb, "the end", &ended)?;
            let after = native::get(&self.api.server, &exec).with(200).json();
            expect(after["status"] == "ended", "after", &after)?;
        }
        let sandbox = native::get(&self.api.server, &path).with(200).json();
        expect(sandbox["status"] == "running", "the sandbox", &sandbox)?;
        native::delete(&self.api.server, &path).with(200);
        self.gone()
    }

    fn session(&mut self) -> Result<(), String> {
        let id = native::script(&self.api.server, "exec sleep 600");
        let path = format!("/v1/sandboxes/{id}");
        let sessions = format!("{path}/sessions");
        native::post(&self.api.server, &sessions, &json!({ "name": "main" })).with(201);
        let session = format!("{sessions}/main");
        let mut body = json!({ "command": self.line(), "grace_ms": GRACE });
        if self.case.ending == Ending::SessionTimeout {
            body["timeout_ms"] = self.limit.into();
        }
        let reply = native::post(&self.api.server, &format!("{session}/run?wait=0"), &body).with(202);
        let number = reply.json()["number"].clone();
        if self.stands()? {
            if self.case.ending == Ending::SessionDelete {
                let ended = native::delete(&self.api.server, &session).with(200).json();
                self.gone()?;
                let is_so = ended["result"] == "gone" && ended["report"]["verified"] == true;
                expect(is_so, "the end", &ended)?;
            } else {
                let command = format!("{session}/commands/{number}");
                let mut told = Value::Null;
                until(DEADLINE, || {
                    told = native::get(&self.api.server, &command).with(200).json();
                    !told["end"].is_null()
                });
                self.gone()?;
                let is_so = told["end"]["how"] == "timed_out" && told["end"]["remaining"].is_null();
                expect(is_so, "the end", &told)?;
                let after = json!({ "command": "echo usable" });
                let after = native::post(&self.api.server, &format!("{session}/run"), &after).json();
                expect(after["end"]["code"] == 0, "the session", &after)?;
            }
        }
        native::delete(&self.api.server, &path).with(200);
        self.gone()
    }

    fn delete_session(&self) -> Result<(), String> {
        let told = self.api.post("/api/session/delete", &json!({ "sessionId": "s" }));
        if told.status != 200 {
            return Err(format!("delete: {}", told.json()));
        }
        self.gone()?;
        let listed = self.api.get("/api/session/list").ok();
        expect(listed["data"] == json!([]), "the sessions", &listed)
    }

    fn process(&mut self) -> Result<(), String> {
        self.api.process("s", "p", &self.line());
        if self.stands()? {
            expect(self.api.status("p").0 == "running", "before", &json!(self.api.status("p")))?;
            if self.case.ending == Ending::ProcessKillAfterRestart {
                self.replace_server()?;
            }
            match self.case.ending {
                Ending::ProcessSessionDelete => {
                    self.delete_session()?;
                    self.api.get("/api/process/p").fails(404, "PROCESS_NOT_FOUND");
                    return Ok(());
                }
                Ending::ProcessKillAll => {
                    let told = self.api.delete("/api/process/kill-all");
                    self.gone()?;
                    expect(told.ok()["cleanedCount"] == 1, "the count", &told.json())?;
                }
                _ => {
                    let told = self.api.delete("/api/process/p");
                    self.gone()?;
                    told.ok();
                }
            }
            let (status, code) = self.api.status("p");
            let is_so = status == "killed" && code.is_some();
            expect(is_so, "after", &json!([status, code]))?;
        }
        self.delete_session()
    }

    fn execute(&mut self) -> Result<(), String> {
        let ending = self.case.ending;
        let mut body = json!({ "command": self.line(), "sessionId": "s" });
        if ending == Ending::ExecuteTimeout {
            body["timeoutMs"] = self.limit.into();
        }
        self.api.run("s", "true").ok();
        let mut answer = self.api.send("POST", "/api/execute", "", &body.to_string());
        if self.stands()? {
            if ending == Ending::ExecuteSessionDelete {
                self.delete_session()?;
                let told = Told::read(&mut answer);
                expect(told.json()["code"] == "SESSION_DESTROYED", "the command", &told.json())?;
                return Ok(());
            }
            let told = Told::read(&mut answer);
            self.gone()?;
            expect(told.json()["code"] == "COMMAND_EXECUTION_ERROR", "the command", &told.json())?;
            if self.api.out("s", "echo usable") != "usable\n" {
                return Err("the session is not usable".to_owned());
            }
        }
        self.delete_session()
    }

    fn job(&mut self) -> Result<(), String> {
        self.api.run("s", &format!("{} &", self.words().join(" "))).ok();
        if self.stands()? && self.case.ending == Ending::JobSessionDeleteAfterRestart {
            self.replace_server()?;
        }
        self.delete_session()
    }

    fn sessionless(&mut self) -> Result<(), String> {
        let body =
            json!({ "command": self.line(), "sessionId": "__DISABLE_SESSION__", "timeoutMs": self.limit });
        let mut answer = self.api.send("POST", "/api/execute", "", &body.to_string());
        if self.stands()? {
            let told = Told::read(&mut answer);
            self.gone()?;
            expect(told.ok()["exitCode"] == 124, "the command", &told.json())?;
        } else {
            Told::read(&mut answer).ok();
        }
        // Its sandbox waits for the next one without a session.
        let ended = self.api.env.call(["rm", "-f", "--all"]);
        if ended.status.success() { Ok(()) } else { Err(format!("{ended:?}")) }
    }
}
