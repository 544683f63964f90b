//! Searches the host for leaks.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use penfold_cgroup::{Leaf, mountinfo};
use penfold_process::{Pid, quote_words};
use penfold_resource::traces::{self, FoundTraces, Trace};
use penfold_resource::{PlannedResource, ResourcePresence};

use super::homes::{Claim, Homes};
use super::unfinished::is_unfinished_record;
use super::{Leak, Survey, Thing, age};
use crate::Member;
use crate::host_processes::{HostProcesses, process_age};
use penfold_control::descent::SupervisionState;
use penfold_control::{is_supervised, supervised_processes};
use penfold_state::error_chain;
use penfold_state::evidence::fingerprints::Fingerprints;
use penfold_state::evidence::is_held_anywhere;
use penfold_state::lock::is_directory_free;
use penfold_state::record::Registry;
use penfold_state::survivors::{self, LivingSurvivor};
use penfold_state::{Files, Intent, LeafName};

/// The most cgroups to visit.
const MOST_CGROUPS: usize = 50_000;
/// The most directories to search for directories with a mark.
const MOST_PLACES: usize = 1000;
/// A record younger than this many seconds may be about to be made or removed.
pub(super) const YOUNG: u64 = 2;

/// Implements [`super::find_leaks`].
pub(super) fn search_once(state_root: &Path, temporary: &[PathBuf]) -> io::Result<Survey> {
    let host = HostProcesses::look(state_root)?;
    let survey = Survey { complete: true, ..Survey::default() };
    let marked = host.marked();
    let homes = Homes::new(state_root);
    let mut search = LeakSearch {
        survey,
        host,
        marked,
        homes,
        living: HashSet::new(),
        elsewhere: HashSet::new(),
        survived: HashSet::new(),
        orphaned: HashSet::new(),
        untold: HashSet::new(),
        places: BTreeSet::new(),
    };
    if !search.host.complete() {
        search.blind("some processes could not be looked at".to_owned());
    }
    search.survivors(state_root);
    search.records(state_root);
    search.sockets(state_root);
    search.processes();
    search.cgroups();
    search.names(state_root);
    search.containers(state_root);
    search.places.insert(state_root.join("sockets"));
    search.resources(temporary);
    for base in temporary {
        search.directories(base);
    }
    Ok(search.survey)
}

pub(super) struct LeakSearch {
    pub(super) survey: Survey,
    host: HostProcesses,
    /// The processes that carry a marker, and the sandboxes in it.
    marked: HashMap<Pid, Vec<String>>,
    pub(super) homes: Homes,
    /// Sandboxes with a supervisor.
    pub(super) living: HashSet<String>,
    /// Those of them whose supervisor is in another mount namespace: a record here is not theirs.
    pub(super) elsewhere: HashSet<String>,
    /// Sandboxes with members that could not be ended: all that is left of them goes with these.
    pub(super) survived: HashSet<String>,
    /// Sandboxes with a record and no supervisor: their remains go with the record.
    pub(super) orphaned: HashSet<String>,
    /// Orphaned sandboxes without an intent: only the name of a directory shows that it is theirs.
    untold: HashSet<String>,
    /// Directories in which sandboxes have directories with a mark.
    places: BTreeSet<PathBuf>,
}

impl LeakSearch {
    /// Notes that something could not be read that matters for all leaks.
    pub(super) fn blind(&mut self, what: String) {
        self.survey.complete = false;
        self.survey.unread.push(what);
    }

    /// Adds the members that could not be ended.
    fn survivors(&mut self, root: &Path) {
        let host = Fingerprints::below(root);
        let survivors = host.survivors();
        if let Some(unread) = survivors.unread() {
            self.blind(unread.to_owned());
        }
        let registry = Registry::open_existing(root).ok().flatten();
        let files = |id: &str| registry.as_ref().and_then(|registry| registry.look(id).ok().flatten());
        for (id, living) in survivors.found() {
            let is_refused = living.iter().any(LivingSurvivor::is_refused);
            let (pids, reasons) =
                (living.iter().map(LivingSurvivor::pid).collect(), survivors::describe_survivors(living));
            self.survivors_of(id, files(id), pids, (is_refused, reasons));
        }
        for id in registry.iter().flat_map(|registry| registry.names().unwrap_or_default()) {
            if let Some(files) = files(&id).filter(Files::has_unwritten_survivors)
                && !self.survived.contains(&id)
            {
                let pids = supervised_processes(&files).unwrap_or_default();
                let reasons = vec!["members that are not written down".to_owned()];
                self.survivors_of(&id, Some(files), pids, (false, reasons));
            }
        }
        self.survey.leaks.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    }

    fn survivors_of(
        &mut self,
        id: &str,
        files: Option<Files>,
        pids: Vec<Pid>,
        (is_refused, reasons): (bool, Vec<String>),
    ) {
        let supervised = is_supervised(id, files.as_ref());
        let intent = files.and_then(|files| files.intent().ok());
        self.places_of(intent.as_ref());
        let numbers = pids.iter().map(|pid| pid.as_raw_pid()).collect();
        let processes = self.host.members(pids);
        let age_s = processes.first().map_or(0, |oldest| process_age(oldest.id));
        let thing = Thing::Survivor { supervised, is_refused, pids: numbers, reasons };
        let name = intent.and_then(|intent| intent.held_name());
        self.survey.leaks.push(Leak { id: id.to_owned(), name, thing, processes, age_s, claimed: true });
        self.living.insert(id.to_owned());
        self.survived.insert(id.to_owned());
    }

    fn records(&mut self, root: &Path) {
        let registry = match Registry::open_existing(root) {
            Ok(Some(registry)) => registry,
            Ok(None) => return,
            Err(error) => return self.blind(error_chain(&error)),
        };
        let names = match registry.names() {
            Ok(names) => names,
            Err(error) => return self.blind(format!("the records below `{}`: {error}", root.display())),
        };
        for name in names.into_iter().filter(|name| !self.survived.contains(name)).collect::<Vec<_>>() {
            self.record(&registry, name, root);
        }
    }

    fn record(&mut self, registry: &Registry, name: String, root: &Path) {
        let path = root.join("sandboxes").join(&name);
        match registry.take(&name) {
            Ok(Some(record)) => {
                let intent = record.intent().ok();
                self.places_of(intent.as_ref());
                let processes = self.carriers(&name, record.files().has_ended());
                // A report beside a living member was forged.
                if record.files().has_ended() && processes.is_empty() {
                    self.ended(&record, intent, path);
                } else if self.homes.is_elsewhere(&name) {
                    self.elsewhere.insert(name.clone());
                    self.living.insert(name);
                } else {
                    if intent.is_none() {
                        self.untold.insert(name.clone());
                    }
                    let command =
                        intent.as_ref().map(|intent| quote_words(&intent.command)).unwrap_or_default();
                    let thing = Thing::Record { path, command, begun: true };
                    self.orphan(name, intent.and_then(|intent| intent.held_name()), thing, processes);
                }
            }
            Ok(None) => {
                let files = registry.look(&name).ok().flatten();
                let intent = files.as_ref().and_then(|files| files.intent().ok());
                if intent.is_none() && age(&path) >= YOUNG && is_unfinished_record(&path) {
                    let thing = Thing::Record { path, command: String::new(), begun: false };
                    return self.orphan(name, None, thing, Vec::new());
                }
                self.places_of(intent.as_ref());
                if let Some(files) = files {
                    self.unreachable(&files, intent, path);
                }
                self.living.insert(name);
            }
            Err(error) => {
                let why = format!("sandbox {name} may be alive: {}", error_chain(&error));
                self.survey.unread.push(why);
                self.survey.unjudged.push(name.clone());
                self.living.insert(name);
            }
        }
    }

    /// Notes where a sandbox has its workspace and other directories: those of lost records may be beside them.
    fn places_of(&mut self, intent: Option<&Intent>) {
        let planned = intent.iter().flat_map(|intent| &intent.resources);
        for planned in planned {
            if let PlannedResource::Directory(directory) = planned
                && let Some(parent) = directory.path.parent()
                && !self.places.contains(parent)
            {
                if self.places.len() < MOST_PLACES {
                    self.places.insert(parent.to_owned());
                } else {
                    self.survey
                        .unread
                        .push(format!("`{}`: more than {MOST_PLACES} places", parent.display()));
                }
            }
        }
    }

    /// Adds containers of `penfold oci` that their engine has lost, or may have forgotten.
    fn containers(&mut self, root: &Path) {
        let noted = match penfold_oci::noted_containers(root) {
            Ok(noted) => noted,
            Err(error) => {
                return self.survey.unread.push(format!("the containers of other engines: {error}"));
            }
        };
        for one in noted.into_iter().filter(|one| one.is_lost || one.is_refused) {
            let (age_s, processes) = (age(&one.file), self.host.members(one.pids));
            let thing = Thing::Container { is_lost: one.is_lost, path: one.file };
            self.survey.leaks.push(Leak {
                id: one.note.id,
                name: None,
                thing,
                processes,
                age_s,
                claimed: true,
            });
        }
    }

    /// Returns the processes with the marker of a sandbox. If the sandbox has `ended`, only processes without a
    /// supervisor.
    fn carriers(&mut self, id: &str, ended: bool) -> Vec<Member> {
        let carriers = self.marked.iter().filter(|(_, ids)| ids.iter().any(|other| other == id));
        let mut pids: Vec<Pid> = carriers.map(|(pid, _)| *pid).collect();
        if ended {
            pids.retain(|&pid| self.host.guard(pid, id) == SupervisionState::Unguarded);
        }
        self.host.members(pids)
    }

    fn orphan(&mut self, id: String, name: Option<String>, thing: Thing, processes: Vec<Member>) {
        let age_s = thing.path().map_or(0, age);
        self.survey.leaks.push(Leak { id: id.clone(), name, thing, processes, age_s, claimed: true });
        self.orphaned.insert(id);
    }

    /// Adds processes without a record. A sandbox is a leak only if no process with its id has a supervisor.
    fn processes(&mut self) {
        let marked: Vec<(Pid, Vec<String>)> = self.marked.clone().into_iter().collect();
        let mut left: Vec<(Pid, Vec<String>)> = Vec::new();
        for (pid, ids) in marked {
            let recorded = ids.iter().any(|id| self.living.contains(id));
            if recorded || ids.iter().any(|id| self.host.guard(pid, id) != SupervisionState::Unguarded) {
                self.living.extend(ids);
            } else if self.host.is_own(pid) {
                left.push((pid, ids));
            }
        }
        let mut lost: HashMap<String, Vec<Pid>> = HashMap::new();
        for (pid, ids) in left {
            let known = |id: &String| self.living.contains(id) || self.orphaned.contains(id);
            if !ids.iter().any(known)
                && let Some(outermost) = ids.into_iter().next()
            {
                lost.entry(outermost).or_default().push(pid);
            }
        }
        for (id, pids) in lost {
            let claim = self.homes.claim(&id, self.homes.leaf(&id).as_deref(), &pids);
            if claim == Claim::Elsewhere {
                continue;
            }
            let processes = self.host.members(pids);
            if let Some(oldest) = processes.first() {
                let age_s = process_age(oldest.id);
                let claimed = claim == Claim::Ours;
                let thing = Thing::Processes;
                self.survey.leaks.push(Leak { id, name: None, thing, processes, age_s, claimed });
            }
        }
    }

    fn cgroups(&mut self) {
        let mounts = std::fs::read("/proc/self/mountinfo")
            .and_then(|text| mountinfo::parse_mountinfo(&text).map_err(io::Error::other));
        let mounts = match mounts {
            Ok(mounts) => mounts,
            Err(error) => return self.blind(format!("the list of mounts: {error}")),
        };
        let mut queue: Vec<PathBuf> = mounts
            .into_iter()
            .filter(|mount| mount.fs_type == "cgroup2")
            .map(|mount| mount.mount_point)
            .collect();
        let mut seen = HashSet::new();
        while let Some(path) = queue.pop() {
            let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
            if !seen.insert((meta.dev(), meta.ino())) {
                continue;
            }
            if seen.len() > MOST_CGROUPS {
                return self.blind(format!("more than {MOST_CGROUPS} cgroups"));
            }
            if let Some(id) = LeafName::id_at(&path) {
                self.cgroup(&path, id, meta.uid());
            }
            // The kernel counts the cgroups below in the links of the directory.
            if meta.nlink() > 2 {
                match std::fs::read_dir(&path) {
                    Ok(entries) => queue.extend(
                        entries
                            .filter_map(Result::ok)
                            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                            .map(|entry| entry.path()),
                    ),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => {
                        self.survey.unread.push(format!("cannot read `{}`: {error}", path.display()));
                    }
                }
            }
        }
    }

    fn cgroup(&mut self, path: &Path, id: String, owner: u32) {
        let user = rustix::process::geteuid();
        let mine = user.is_root() || user.as_raw() == owner;
        if !mine || self.living.contains(&id) || self.orphaned.contains(&id) || !is_directory_free(path) {
            return;
        }
        let mut pids = Vec::new();
        let looked = Leaf::open(path).and_then(|leaf| {
            let Some(leaf) = leaf else { return Ok(None) };
            leaf.processes(&mut pids)?;
            leaf.populated().map(Some)
        });
        match looked {
            Ok(None) => return,
            // Members without a pid in this namespace cannot be judged.
            Ok(Some(populated)) if populated && pids.is_empty() => return,
            Ok(Some(_)) => {}
            Err(error) => return self.survey.unread.push(error_chain(&error)),
        }
        for &pid in &pids {
            let living =
                self.marked.get(&pid).is_some_and(|ids| ids.iter().any(|id| self.living.contains(id)));
            if living || self.host.guard(pid, &id) != SupervisionState::Unguarded {
                self.living.insert(id);
                return;
            }
        }
        // A process in a leaf that another user made is that user's to end.
        let others = owner != user.as_raw() && pids.iter().any(|&pid| !self.host.is_own(pid));
        let claim = self.homes.claim(&id, Some(path), &[]);
        if others || claim == Claim::Elsewhere {
            return;
        }
        let processes = self.host.members(pids);
        let age_s = age(path);
        let thing = Thing::Cgroup { path: path.to_owned() };
        let claimed = claim == Claim::Ours;
        self.survey.leaks.push(Leak { id, name: None, thing, processes, age_s, claimed });
    }

    fn directories(&mut self, base: &Path) {
        // The search for marks tells what cannot be read.
        let Ok(entries) = std::fs::read_dir(base) else { return };
        let user = rustix::process::geteuid().as_raw();
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path();
            let Some(id) = LeafName::id_at(&path) else { continue };
            let ours = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir() && meta.uid() == user);
            let told = self.orphaned.contains(&id) && !self.untold.contains(&id);
            let known = self.living.contains(&id) || told;
            if !ours || known || !is_directory_free(&path) || self.host.stands_in(&path) {
                continue;
            }
            let carriers: Vec<Pid> =
                self.marked.iter().filter(|(_, ids)| ids.contains(&id)).map(|(pid, _)| *pid).collect();
            let claim = self.homes.claim(&id, self.homes.leaf(&id).as_deref(), &carriers);
            if claim == Claim::Elsewhere {
                continue;
            }
            let (age_s, claimed) = (age(&path), claim == Claim::Ours);
            let thing = Thing::Directory { path, boot: None };
            self.survey.leaks.push(Leak { id, name: None, thing, processes: Vec::new(), age_s, claimed });
        }
    }

    /// Adds mounts, loop devices, links, network namespaces and marked directories of sandboxes without a record.
    fn resources(&mut self, temporary: &[PathBuf]) {
        let mut looks = Vec::new();
        if rustix::process::geteuid().is_root() {
            looks.push(traces::find_traces());
        }
        self.places.extend(temporary.iter().cloned());
        let places: Vec<PathBuf> = self.places.iter().cloned().collect();
        looks.push(traces::in_directories(&places));
        for FoundTraces { traces, unread } in looks {
            for (what, error) in unread {
                self.survey.unread.push(format!("cannot read `{}`: {error}", what.display()));
            }
            for (id, trace) in traces {
                if !self.living.contains(&id) && !self.orphaned.contains(&id) {
                    self.resource(id, trace);
                }
            }
        }
    }

    fn resource(&mut self, id: String, trace: Trace) {
        let leaf = self.homes.leaf(&id);
        let is_locked = leaf.as_deref().is_some_and(|leaf| !is_directory_free(leaf));
        let carriers: Vec<Pid> =
            self.marked.iter().filter(|(_, ids)| ids.contains(&id)).map(|(pid, _)| *pid).collect();
        let claim = self.homes.claim(&id, leaf.as_deref(), &carriers);
        let lives = is_locked || !carriers.is_empty() || is_held_anywhere(&id);
        if claim == Claim::Elsewhere || lives {
            return;
        }
        // What a process holds may be alive: a person decides.
        let is_held = match trace.presence(&id) {
            Ok(ResourcePresence::Ours { held_by }) => !held_by.is_empty(),
            Ok(ResourcePresence::Absent | ResourcePresence::Foreign { .. }) => return,
            Err(error) => return self.survey.unread.push(error_chain(&error)),
        };
        // Its sandbox lives, perhaps where neither its processes nor its record can be seen.
        if let Trace::Directory { path, .. } = &trace
            && !is_directory_free(path)
        {
            return;
        }
        let (age_s, thing) = match trace {
            Trace::Netns { path } => (age(&path), Thing::Netns { path }),
            Trace::Mount { path, is_overlay } => (age(&path), Thing::Mount { path, is_overlay }),
            Trace::Link { name } => (age(&Path::new("/sys/class/net").join(&name)), Thing::Link { name }),
            Trace::Loop { file, device } => {
                (age(&Path::new("/sys/block").join(&device).join("loop")), Thing::Loop { path: file, device })
            }
            Trace::Directory { path, boot } => (age(&path), Thing::Directory { path, boot: Some(boot) }),
        };
        let claimed = claim == Claim::Ours && !is_held;
        self.survey.leaks.push(Leak { id, name: None, thing, processes: Vec::new(), age_s, claimed });
    }
}
