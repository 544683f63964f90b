//! Derives the status of a sandbox: first from evidence, then from files.

use penfold_process::{ProcFs, ProcessId};
use penfold_teardown::{Cause, Level};

use super::{SandboxView, SeenSandbox, look};
use crate::holders::list_passing;
use crate::resolve::{Resolver, SandboxRef, wait_a_moment};
use crate::threads::on_all_processors;
use penfold_state::Files;
use penfold_state::evidence::{Evidence, elsewhere, fingerprints, name_processes};
use penfold_state::lives::NextLife;
use penfold_state::outcome::ExitStatus;
use penfold_state::record::SCHEMA;
use penfold_state::state::{CommandExit, State, Status};
use penfold_state::survivors::describe_survivors;
use penfold_state::time::now_ms;

/// The time that a sandbox may exist before its supervisor writes its state, in milliseconds.
const YOUNG_MS: u64 = 2000;

/// The status, with the facts behind it.
#[derive(Debug)]
pub(super) struct DerivedStatus {
    pub(super) status: Status,
    pub(super) exit: Option<ExitStatus>,
    pub(super) cause: Option<Cause>,
    pub(super) level: Option<Level>,
    pub(super) ended_at_ms: Option<u64>,
    pub(super) evidence: Vec<String>,
    pub(super) elsewhere: bool,
}

impl DerivedStatus {
    fn of(status: Status) -> DerivedStatus {
        DerivedStatus {
            status,
            exit: None,
            cause: None,
            level: None,
            ended_at_ms: None,
            evidence: Vec::new(),
            elsewhere: false,
        }
    }

    fn ended(mut self, exited: Option<CommandExit>) -> DerivedStatus {
        if let Some(CommandExit { exit, cause, at_ms, .. }) = exited {
            (self.exit, self.cause, self.ended_at_ms) = (exit, Some(cause), Some(at_ms));
        }
        self
    }
}

/// Derives the status of a sandbox whose lock is held.
pub(super) fn derive_attended(
    resolver: &Resolver,
    known: &SandboxRef,
    state: Option<&State>,
    damage: &mut Vec<String>,
) -> DerivedStatus {
    if let Some(evidence) = state.and_then(|state| waiting_evidence(resolver, known, state)) {
        let exited = known.record.as_ref().and_then(|files| files.exited().ok().flatten());
        return DerivedStatus { evidence, ..DerivedStatus::of(Status::Orphaned).ended(exited) };
    }
    let status = match state.map(|state| state.status) {
        // With a full disk, or just after a takeover, the state is that of before.
        _ if is_unkillable(known) => Status::Unkillable,
        Some(Status::Running) => return DerivedStatus::of(running_or_paused(known)),
        Some(Status::Created) => return DerivedStatus::of(Status::Created),
        Some(status @ (Status::Stopping | Status::Unkillable)) => status,
        Some(status) => {
            damage.push(format!("state.json: it says `{status}` of a sandbox that has a supervisor"));
            Status::Running
        }
        None => match unsaid(known, damage) {
            // No file says so of a foreground sandbox.
            Status::Running if !survivors(resolver, known).is_empty() => Status::Unkillable,
            status => return DerivedStatus::of(status),
        },
    };
    let exited = known.record.as_ref().and_then(|files| files.exited().ok().flatten());
    let evidence = if status == Status::Unkillable { survivors(resolver, known) } else { Vec::new() };
    DerivedStatus { evidence, ..DerivedStatus::of(status).ended(exited) }
}

fn is_unkillable(known: &SandboxRef) -> bool {
    known.record.as_ref().is_some_and(Files::is_unkillable)
}

fn has_unwritten_survivors(known: &SandboxRef) -> bool {
    known.record.as_ref().is_some_and(Files::has_unwritten_survivors)
}

/// Describes the members that could not be ended, a sentence each.
fn survivors(resolver: &Resolver, known: &SandboxRef) -> Vec<String> {
    let mut sentences = describe_survivors(resolver.survivors(&known.id));
    if has_unwritten_survivors(known) {
        sentences.push("its supervisor has members left that are not written down".to_owned());
    }
    sentences
}

/// Derives the status of an ended sandbox whose next life begins without a request. The exit is that of the life that has ended.
pub(super) fn between_lives(known: &SandboxRef, next: NextLife) -> DerivedStatus {
    match next {
        NextLife::Begins => DerivedStatus::of(Status::Created),
        NextLife::Awaited => {
            let exited = known.record.as_ref().and_then(|files| files.exited().ok().flatten());
            DerivedStatus::of(Status::Waiting).ended(exited)
        }
    }
}

/// Asks the kernel whether the members of a sandbox with a supervisor are frozen.
fn running_or_paused(known: &SandboxRef) -> Status {
    let is_frozen = known.leaf.as_deref().is_some_and(fingerprints::is_frozen);
    if is_frozen { Status::Paused } else { Status::Running }
}

/// Returns evidence that the lock is held by a command that cleans up after dead supervisors, whose state is out of
/// date.
///
/// A supervisor may have another pid here, or none. The state that it wrote counts then.
fn waiting_evidence(resolver: &Resolver, known: &SandboxRef, state: &State) -> Option<Vec<String>> {
    // A supervisor listens: that is known for all sandboxes after one look.
    if resolver.fingerprints().has_socket(&known.id) {
        return None;
    }
    let mut proc = ProcFs::open().ok()?;
    let mut lives = |id: &ProcessId| !proc.presence(*id).is_gone();
    if state.supervisors.is_empty() || state.supervisors.iter().any(&mut lives) {
        return None;
    }
    let passing = list_passing(known.record.as_ref()?).ok().filter(|pids| !pids.is_empty())?;
    let mut evidence =
        vec![format!("its supervisors are dead, and {} is putting it away", name_processes(&passing))];
    evidence.extend(Evidence::of(resolver.fingerprints(), &known.subject()).sentences());
    Some(evidence)
}

/// Derives the status of a sandbox with a held lock and no state.
fn unsaid(known: &SandboxRef, damage: &mut Vec<String>) -> Status {
    let detached = known.intent.as_ref().is_some_and(|intent| intent.detached.is_some());
    if !detached || damage.iter().any(|damage| damage.starts_with("state.json")) {
        return running_or_paused(known);
    }
    let begun = match &known.leaf {
        Some(leaf) => fingerprints::leaf_members(leaf).is_some_and(|(populated, _)| populated),
        None => false,
    };
    // If the clock was set back, the sandbox counts as old.
    let made = known.intent.as_ref().map_or(0, |intent| intent.made_at_ms);
    let young = now_ms().checked_sub(made).is_some_and(|age| age < YOUNG_MS);
    if young && !begun {
        return Status::Created;
    }
    damage.push("state.json: it is missing".to_owned());
    Status::Running
}

/// Derives the status of a sandbox without a supervisor; `None` when nothing of it exists.
pub(super) fn derive_abandoned(
    resolver: &Resolver,
    known: &SandboxRef,
    damage: &mut Vec<String>,
) -> Option<DerivedStatus> {
    let evidence = Evidence::of(resolver.fingerprints(), &known.subject());
    let ended = known.record.as_ref().is_some_and(Files::has_ended);
    if !evidence.is_nothing() {
        let supervisors = elsewhere::supervisors_elsewhere(resolver.fingerprints(), &known.subject());
        if !supervisors.is_empty() {
            let evidence = vec![format!(
                "in another mount namespace, {} holds its record",
                name_processes(&supervisors)
            )];
            return Some(DerivedStatus { evidence, elsewhere: true, ..DerivedStatus::of(Status::Running) });
        }
        if ended {
            damage.push("report.json: it says that nothing is left".to_owned());
        }
        let exited = known.record.as_ref().and_then(|files| files.exited().ok().flatten());
        let mut evidence = evidence.sentences();
        evidence.insert(0, why_orphaned(known));
        return Some(DerivedStatus { evidence, ..DerivedStatus::of(Status::Orphaned).ended(exited) });
    }
    let Some(files) = &known.record else {
        let empty = known.leaf.as_ref().filter(|leaf| fingerprints::leaf_members(leaf).is_some());
        let mut judged = DerivedStatus::of(Status::Lost);
        judged.evidence = match empty {
            Some(leaf) => {
                vec![why_orphaned(known), format!("the cgroup `{}` is left, empty", leaf.display())]
            }
            None if known.damage.is_empty() => return None,
            None => vec![why_orphaned(known)],
        };
        return Some(judged);
    };
    if rustix::fs::fstat(files.dir()).is_ok_and(|stat| stat.st_nlink == 0) {
        return None;
    }
    Some(if ended { over(files, damage) } else { lost(files, damage) })
}

fn why_orphaned(known: &SandboxRef) -> String {
    let why = match &known.record {
        Some(_) => "no process holds the lock of its record",
        None if known.damage.is_empty() => "it has no record",
        None => "its record cannot be opened",
    };
    why.to_owned()
}

/// Derives the status of a sandbox with a verified end.
fn over(files: &Files, damage: &mut Vec<String>) -> DerivedStatus {
    let report = files.report().unwrap_or_else(|error| {
        damage.push(format!("report.json: {error}"));
        None
    });
    let exited = files.exited().unwrap_or_else(|error| {
        damage.push(format!("exit.json: {error}"));
        None
    });
    let known_exit = exited.or_else(|| {
        report.as_ref().map(|report| CommandExit {
            schema: SCHEMA,
            exit: report.exit,
            cause: report.cause,
            at_ms: report.started_at_ms.saturating_add(report.duration_ms),
        })
    });
    let status = known_exit.map_or(Status::Lost, |exited| exited.status());
    DerivedStatus { level: report.map(|report| report.level), ..DerivedStatus::of(status).ended(known_exit) }
}

/// Derives the status of a sandbox without a verified end, of which nothing was found.
fn lost(files: &Files, damage: &mut Vec<String>) -> DerivedStatus {
    let exited = files.exited().unwrap_or_else(|error| {
        damage.push(format!("exit.json: {error}"));
        None
    });
    let evidence = vec![
        "no process holds the lock of its record".to_owned(),
        "no process was found in its cgroup or with its marker".to_owned(),
    ];
    DerivedStatus { evidence, ..DerivedStatus::of(Status::Lost).ended(exited) }
}

/// Tells whether a sandbox has ended and left no cgroup: a quick check for lists of living sandboxes.
pub(super) fn is_over(resolver: &Resolver, known: &SandboxRef) -> bool {
    known.record.as_ref().is_some_and(|files| {
        resolver.fingerprints().leaves().excludes(&known.id)
            && resolver.fingerprints().survivors().excludes(&known.id)
            && files.lock().is_free()
            && files.has_ended()
    })
}

/// Observes these sandboxes again a moment later, after their files had time to be made or removed.
pub(super) fn look_a_moment_later(resolver: &Resolver, ids: &[&str]) -> Vec<(SandboxRef, SandboxView)> {
    wait_a_moment();
    let fresh = resolver.again();
    let again = |id: &&str| {
        let known = fresh.by_id(id).or_else(|| fresh.by_marker(id))?;
        look(&fresh, &known).map(|seen| (known, seen))
    };
    ids.iter().filter_map(again).collect()
}

/// Observes again those sandboxes whose last files or processes may just have gone.
pub(super) fn look_again(resolver: &Resolver, found: &mut Vec<SeenSandbox>) {
    let looks =
        on_all_processors(found, |some| some.iter().map(|seen| seen.0.is_fleeting()).collect::<Vec<_>>());
    let mut looks = looks.into_iter().flatten();
    let (fleeting, lasting): (Vec<_>, Vec<_>) = found.drain(..).partition(|_| looks.next() == Some(true));
    *found = lasting;
    if !fleeting.is_empty() {
        let ids: Vec<&str> = fleeting.iter().map(|seen| seen.0.id.as_str()).collect();
        found.extend(look_a_moment_later(resolver, &ids).into_iter().map(Box::new));
    }
}
