//! One step of a client, and whether its answer may be what it is.

use serde_json::Value;

use penfold_testkit::proc::Identity;

use super::fixture::{Answer, Fixture};
use super::harm;
use super::model::{Before, ExpectedSandbox};
use super::plan::{Act, By, HOSTILE, Look, MARKED, Mishap, SCRIPTS, Start, Tree, Whom};

/// The words for a sandbox in which something may be alive.
const ALIVE: [&str; 6] = ["created", "running", "paused", "stopping", "unkillable", "orphaned"];

/// What `gc` may take: what lies below our own state root and temporary directory. Other tests have young leaves on this host.
pub const OWN_KINDS: &str = "record,ended,name,file,socket,directory";

/// Who does the step.
pub struct Client<'f> {
    pub fixture: &'f Fixture,
    pub number: usize,
    pub step: usize,
    pub stranger: Identity,
    /// Who was stopped, and in which step they go on.
    pub stopped: Vec<(usize, Vec<Identity>)>,
    /// What happens to the command of this step.
    pub mishap: Option<Mishap>,
}

impl Client<'_> {
    pub fn act(&mut self, act: Act, mishap: Option<Mishap>) {
        self.mishap = mishap;
        self.stopped.retain(|(until, stopped)| {
            let over = *until <= self.step;
            if over {
                harm::go_on(stopped);
            }
            !over
        });
        match act {
            Act::Start(start) => self.start(start),
            Act::Ps => self.ps(),
            Act::Look(look, whom) => self.look(look, whom),
            Act::Logs(whom) => self.logs(whom),
            Act::Wait(whom) => self.wait(whom),
            Act::Exec(whom, detached) => self.exec(whom, detached),
            Act::Extend(whom) => self.expect(&["extend"], whom, &["1h"], &[0, 1]),
            Act::End(verb, whom) => self.end(verb, whom),
            Act::KillAll => self.kill_all(),
            Act::Gc(all) => self.gc(all),
            Act::Doctor => self.plain(&["doctor"], &[0, 1]),
            Act::Hit(slot, part, kills) => {
                let stopped = harm::hit(self.fixture, slot, part, kills);
                self.stopped.push((self.step + 4, stopped));
            }
            Act::Damage(slot, damage) => harm::damage(self.fixture, slot, damage, self.stranger),
        }
    }

    fn call(&self, words: &[&str]) -> Option<Answer> {
        self.fixture.call(words, self.mishap)
    }

    fn wrong(&self, words: &[&str], why: &str, answer: &Answer) {
        let (code, out, err) = (answer.code, answer.out.trim(), answer.err.trim());
        let out: String = out.chars().take(600).collect();
        let (number, step, took) = (self.number, self.step, answer.took);
        self.fixture.complain(&format!(
            "client {number} step {step} {words:?}: {why}: {code} in {took:?}: {out} {err}"
        ));
    }

    fn start(&self, start: Start) {
        let (fixture, name) = (self.fixture, format!("s{}", start.slot));
        let wanted = ["auto", "auto", "auto", "auto", "subreaper", "pidns"][start.level];
        let level = if fixture.levels.contains(&wanted) { wanted } else { "auto" };
        let mut words = vec!["run", "-d", "--name", &name, "-l", "of=soak", "--grace", "0.3s"];
        words.extend(["--contain", level, "--log-size", "256K"]);
        words.extend(start.ttl.map(|ttl| ["--ttl", ttl]).into_iter().flatten());
        words.extend(start.idle.then_some(["--idle-timeout", "2s"]).into_iter().flatten());
        let flags = [(start.remove, "--rm"), (start.scratch, "--scratch"), (start.terminal, "-t")];
        words.extend(flags.iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| *flag));
        words.extend(
            (start.keep && level != "pidns")
                .then_some(["--on-supervisor-exit", "keep"])
                .into_iter()
                .flatten(),
        );
        words.push("--");
        let command = self.command(start.tree, level);
        words.extend(command.iter().map(String::as_str));
        let before = fixture.model().begin(start.slot);
        let Some(answer) = self.call(&words) else { return };
        let natural = match start.tree {
            Tree::Script(index) => SCRIPTS[index].1,
            Tree::Hostile(_) => None,
        };
        match answer.code {
            0 => self.started(start, natural, &answer, before),
            125 if answer.err.contains("is taken by sandbox") => {}
            // By its name, which it has before its id is printed.
            125 if answer.err.contains("was ended before its id was printed")
                && fixture.model().was_ended(&before) => {}
            _ => self.wrong(&words, "not started", &answer),
        }
    }

    fn command(&self, tree: Tree, level: &str) -> Vec<String> {
        let fixture = self.fixture;
        match tree {
            Tree::Script(index) => ["sh", "-c", SCRIPTS[index].0].map(str::to_owned).to_vec(),
            Tree::Hostile(index) => {
                let whole = level == "auto" && fixture.ground.is_some();
                let (name, size) = HOSTILE[if whole { index } else { index % MARKED }];
                let cookie = format!("soak-{:x}-{}-{}", fixture.seed, self.number, self.step);
                let place = fixture.env.path(&format!("work/{cookie}"));
                let _ = std::fs::create_dir(&place);
                let words = [
                    fixture.testkit.display().to_string(),
                    "hostile".to_owned(),
                    name.to_owned(),
                    "--ready".to_owned(),
                    place.join("ready").display().to_string(),
                    "--life".to_owned(),
                    "50".to_owned(),
                    "--cookie".to_owned(),
                    cookie,
                    "-n".to_owned(),
                    size.to_string(),
                ];
                words.to_vec()
            }
        }
    }

    fn started(&self, start: Start, natural: Option<i32>, answer: &Answer, before: Before) {
        let fixture = self.fixture;
        let id = answer.out.trim().to_owned();
        if id.len() != 12 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return self.wrong(&["run", "-d"], "no id", answer);
        }
        let record = fixture.env.path("root/sandboxes").join(&id);
        let known = ExpectedSandbox {
            slot: start.slot,
            natural,
            any: matches!(start.tree, Tree::Hostile(_)),
            touched: start.idle || start.ttl.is_some_and(|ttl| ttl != "1h"),
            supervisors: harm::supervisors(&record),
            ..ExpectedSandbox::default()
        };
        let unique = {
            let mut model = fixture.model();
            let touched = known.touched || model.was_ended(&before);
            let misnamed = model.was_misnamed(&before);
            model.slots[start.slot] = Some(id.clone());
            model.known.insert(id, ExpectedSandbox { touched, misnamed, hurt: misnamed, ..known });
            before.other.filter(|other| model.known.get(other).is_some_and(|known| !known.hurt))
        };
        // A name belongs to one that lives; what is hurt may be alive and have lost its name.
        let Some(other) = unique else { return };
        let hurt = || fixture.model().known.get(&other).is_some_and(|known| known.hurt);
        if fixture.living().contains(&other) && !hurt() {
            self.wrong(&["run", "-d"], &format!("{other} has the same name and is alive"), answer);
        }
    }

    fn ps(&self) {
        let before: Vec<String> = self.fixture.model().known.keys().cloned().collect();
        let words = ["ps", "-a", "--json"];
        let Some(answer) = self.call(&words) else { return };
        let rows: Option<Vec<Value>> = serde_json::from_str(&answer.out).ok();
        let Some(rows) = rows.filter(|_| answer.code == 0) else {
            return self.wrong(&words, "no list", &answer);
        };
        let living = self.fixture.living();
        for id in before.iter().filter(|id| living.contains(*id)) {
            match rows.iter().find(|row| row["id"].as_str() == Some(id)) {
                // Without record and leaf there is its marker, which is looked for by those who ask for this id.
                None if self.is_markers_alone(id) => {}
                None => {
                    let known = format!("{:?}", self.fixture.model().known.get(id));
                    self.wrong(&words, &format!("{id} is alive and not listed: {known}"), &answer);
                }
                Some(row) if !ALIVE.contains(&row["status"].as_str().unwrap_or_default()) => {
                    let quiet = Answer { out: row.to_string(), err: String::new(), ..answer };
                    return self.wrong(&words, &format!("{id} is alive"), &quiet);
                }
                Some(_) => {}
            }
        }
        for row in &rows {
            self.row(&words, row, &answer);
        }
    }

    /// Whether a sandbox whose record was damaged has neither that nor a leaf.
    fn is_markers_alone(&self, id: &str) -> bool {
        let recorded = self.fixture.env.path("root/sandboxes").join(id).try_exists().unwrap_or(true);
        let leaf = self.fixture.leaves().map(|leaves| leaves.join(format!("penfold-{id}")));
        let has_leaf = leaf.is_some_and(|leaf| leaf.is_dir());
        !recorded && !has_leaf && self.fixture.model().known.get(id).is_some_and(|known| known.misnamed)
    }

    /// What a row says of the exit of a sandbox.
    fn row(&self, words: &[&str], row: &Value, answer: &Answer) {
        let status = row["status"].as_str().unwrap_or_default();
        if ALIVE.contains(&status) {
            return;
        }
        let number = |value: &Value| value.as_i64().and_then(|value| i32::try_from(value).ok());
        let signal = number(&row["exit"]["signal"]).map(|signal| 128 + signal);
        let code = number(&row["exit"]["code"]).or(signal);
        let told = self.fixture.model().told(row["id"].as_str().unwrap_or_default(), code);
        if let Err(why) = told {
            let quiet = Answer { out: row.to_string(), err: String::new(), ..*answer };
            self.wrong(words, &why, &quiet);
        }
    }

    /// The id that a slot means now, and the word for it.
    fn aim(&self, whom: Whom) -> (Option<String>, String) {
        let id = self.fixture.model().slots[whom.slot].clone();
        let word = match (&id, whom.by) {
            (Some(id), By::Id) => id.clone(),
            (Some(id), By::Prefix) => id[..11].to_owned(),
            _ => format!("s{}", whom.slot),
        };
        (id, word)
    }

    /// Whether the word surely meant this sandbox while the command ran.
    fn is_meant(&self, whom: Whom, id: &str) -> bool {
        let model = self.fixture.model();
        whom.by != By::Name
            || (model.slots[whom.slot].as_deref() == Some(id)
                && model.known.get(id).is_some_and(|known| !known.hurt))
    }

    /// Whether several of a name may be alive, or none of several that have ended: a name belongs to the one that lives,
    /// unless those before it were hurt.
    ///
    /// `aimed` is who was the last in the slot before; with another one now, both may have been what was met.
    fn may_be_ambiguous(&self, whom: Whom, aimed: Option<&String>) -> bool {
        let latest = self.aim(whom).0;
        if latest.as_ref() != aimed {
            return true;
        }
        let living = self.fixture.living();
        let model = self.fixture.model();
        let others =
            model.known.iter().filter(|(id, known)| known.slot == whom.slot && Some(*id) != latest.as_ref());
        let hurt = others.filter(|(_, known)| known.hurt).count() > 0;
        hurt || latest.is_none_or(|id| !living.contains(&id))
    }

    /// Runs a verb on one sandbox and checks its code. What is not found must not be alive.
    fn ask(
        &self,
        (verb, rest): (&[&str], &[&str]),
        whom: Whom,
        codes: &[i32],
    ) -> Option<(Option<String>, Answer)> {
        let (id, word) = self.aim(whom);
        let words = [verb, &[word.as_str()], rest].concat();
        let answer = self.call(&words)?;
        if is_ambiguous(&words, &answer) && whom.by == By::Name && self.may_be_ambiguous(whom, id.as_ref()) {
            return None;
        }
        if is_unknown(&words, &answer) {
            if let Some(id) = id
                && self.fixture.living().contains(&id)
                && self.is_meant(whom, &id)
            {
                self.wrong(&words, &format!("{id} is alive"), &answer);
            }
            return None;
        }
        if !codes.contains(&answer.code) {
            self.wrong(&words, "an odd code", &answer);
            return None;
        }
        Some((id.filter(|id| self.is_meant(whom, id)), answer))
    }

    fn expect(&self, verb: &[&str], whom: Whom, rest: &[&str], codes: &[i32]) {
        self.ask((verb, rest), whom, codes);
    }

    fn plain(&self, words: &[&str], codes: &[i32]) {
        if let Some(answer) = self.call(words)
            && !codes.contains(&answer.code)
        {
            self.wrong(words, "an odd code", &answer);
        }
    }

    fn look(&self, look: Look, whom: Whom) {
        match look {
            Look::Tree => self.expect(&["tree"], whom, &[], &[0]),
            Look::Status => self.expect(&["status"], whom, &[], &[0]),
            // There is none while it lives.
            Look::Report => self.expect(&["report"], whom, &[], &[0, 1]),
            Look::Inspect => {
                let Some((id, answer)) = self.ask((&["inspect"], &[]), whom, &[0]) else { return };
                let rows: Vec<Value> = serde_json::from_str(&answer.out).unwrap_or_default();
                let [row] = rows.as_slice() else {
                    return self.wrong(&["inspect"], "not one", &answer);
                };
                let ended = !ALIVE.contains(&row["status"].as_str().unwrap_or_default());
                if let Some(id) = id.filter(|id| ended && self.fixture.living().contains(id)) {
                    self.wrong(&["inspect"], &format!("{id} is alive"), &answer);
                }
                self.row(&["inspect"], row, &answer);
            }
        }
    }

    fn logs(&self, whom: Whom) {
        let Some((Some(id), answer)) = self.ask((&["logs"], &[]), whom, &[0, 1]) else { return };
        if !self.is_meant(whom, &id) {
            return;
        }
        let model = self.fixture.model();
        let Some(known) = model.known.get(&id).filter(|known| !known.unlogged && !known.any) else { return };
        let may_fail = known.touched || known.hurt;
        let fine = answer.out.is_empty() || answer.out.starts_with("hello");
        drop(model);
        if !fine || (answer.code == 1 && !may_fail) {
            self.wrong(&["logs", &id], "not what it wrote", &answer);
        }
    }

    fn wait(&self, whom: Whom) {
        let words = ["wait", "--timeout", "0.3s"];
        let (id, word) = self.aim(whom);
        let all = [&words[..], &[word.as_str()]].concat();
        let Some(answer) = self.call(&all) else { return };
        let ambiguous =
            is_ambiguous(&all, &answer) && whom.by == By::Name && self.may_be_ambiguous(whom, id.as_ref());
        let Some(id) = id.filter(|id| !ambiguous && self.is_meant(whom, id)) else { return };
        let said = answer.out.trim();
        let code = said.parse::<i32>().ok();
        let over = code.is_some() || said == "unknown";
        let unknown = is_unknown(&all, &answer);
        if !over && !unknown && answer.code != 124 {
            return self.wrong(&all, "no answer", &answer);
        }
        // `unknown` is no word for ended: an orphan has nobody any more who could see its command end.
        if (unknown || code.is_some()) && self.fixture.living().contains(&id) {
            self.wrong(&all, &format!("{id} is alive"), &answer);
        }
        // A name may have got to one that was not known yet.
        if over
            && whom.by != By::Name
            && let Err(why) = self.fixture.model().told(&id, code)
        {
            self.wrong(&all, &why, &answer);
        }
    }

    fn exec(&self, whom: Whom, detached: bool) {
        let (verb, script, own): (&[&str], _, _) =
            if detached { (&["exec", "-d"], "sleep 30", 0) } else { (&["exec"], "sleep 0.1; exit 6", 6) };
        // 143: ended with the sandbox, politely.
        let codes = [own, 120, 125, 129, 137, 143];
        self.expect(verb, whom, &["sh", "-c", script], &codes);
    }

    fn end(&self, verb: &str, whom: Whom) {
        self.fixture.model().ending_begins(Some(whom.slot));
        let words: &[&str] = if verb == "rm" { &["rm", "-f"] } else { &[verb] };
        let asked = self.ask((words, &[]), whom, &[0]);
        self.fixture.model().ending_is_over(Some(whom.slot));
        let Some((id, answer)) = asked else { return };
        let living = self.fixture.living();
        for id in answer.out.lines().chain(id.as_deref()) {
            if living.contains(id) {
                self.wrong(words, &format!("{id} is alive"), &answer);
            }
        }
    }

    fn kill_all(&self) {
        let before: Vec<String> = {
            let mut model = self.fixture.model();
            model.ending_begins(None);
            model.known.keys().cloned().collect()
        };
        let words = ["kill", "--all", "-f"];
        let answer = self.call(&words);
        self.fixture.model().ending_is_over(None);
        let Some(answer) = answer else { return };
        let living = self.fixture.living();
        // What nothing but a marker is left of is not known to be of this state root, and ends when it is named.
        let is_meant = |id: &&String| living.contains(*id) && !self.is_markers_alone(id);
        let alive: Vec<&String> = before.iter().filter(is_meant).collect();
        if answer.code != 0 || !alive.is_empty() {
            self.wrong(&words, &format!("alive: {alive:?}"), &answer);
        }
    }

    /// The members of a sandbox with a damaged record may have nothing of it but the marker: `gc` names them then.
    fn gc(&self, all: bool) {
        let age = if all { "0" } else { "1h" };
        let words = ["gc", "-f", "--older-than", age, "--kind", OWN_KINDS];
        let Some(answer) = self.call(&words) else { return };
        let said = format!("{}\n{}", answer.out, answer.err);
        let kept: Vec<&str> =
            said.lines().filter_map(|line| line.trim().strip_prefix("[FAIL] sandbox ")).collect();
        let is_unproven = |line: &&str| {
            let hurt = line.split(' ').next().and_then(|id| Some(self.fixture.model().known.get(id)?.hurt));
            hurt == Some(true) && line.contains("has the marker of the sandbox and nothing else")
        };
        if answer.code != 0 && !(answer.code == 5 && !kept.is_empty() && kept.iter().all(is_unproven)) {
            self.wrong(&words, "an odd code", &answer);
        }
    }
}

/// Whether no sandbox was found. Where 3 may be the command's code, 125 and a sentence say so.
fn is_unknown(words: &[&str], answer: &Answer) -> bool {
    match words {
        ["exec" | "wait", ..] => answer.code == 125 && answer.err.contains("no sandbox is called"),
        _ => answer.code == 3,
    }
}

/// Whether more than one was found.
fn is_ambiguous(words: &[&str], answer: &Answer) -> bool {
    match words {
        ["exec" | "wait", ..] => answer.code == 125 && answer.err.contains("` matches "),
        _ => answer.code == 4,
    }
}
