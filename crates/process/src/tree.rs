//! Process trees: children, descendants and ancestors.

use std::collections::HashSet;
use std::io;

use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::id::ProcessId;
use crate::path::ProcPath;
use crate::procfs::{Completeness, ProcFs, is_free, is_gone};
use crate::stat::Stat;

/// The most ancestors to follow, a bound for a tree that changes meanwhile.
const MOST_ANCESTORS: usize = 256;

impl ProcFs {
    /// Clears `out` and reads the children of all threads of a process into it; no children when the process is gone.
    ///
    /// `/proc/<pid>/task/<tid>/children` (proc(5)) lists what one thread forked, and may miss some when a child exits
    /// meanwhile. Only a tree that does not change is listed in full, so read again until nothing new appears.
    pub fn children(&mut self, pid: Pid, out: &mut Vec<Pid>) -> io::Result<()> {
        out.clear();
        Ok(self.add_children(pid, None, out)?)
    }

    /// Returns the children that threads of this process other than these have forked.
    ///
    /// The kernel gives orphans to the first thread of a process that has not exited: usually its main thread. So a child of
    /// another thread, while the main thread lives, was forked by this process. Empty where the kernel does not list children.
    pub fn children_of_other_threads(&mut self, but: &[Pid]) -> io::Result<Vec<Pid>> {
        let own = rustix::process::getpid();
        let mut tids = Vec::new();
        self.numbers_in(ProcPath::of(own, "task").as_c_str(), &mut tids)?;
        let mut out = Vec::new();
        for tid in tids.into_iter().filter(|tid| *tid != own && !but.contains(tid)) {
            match self.read_pids(ProcPath::of_task(own, tid, "children").as_c_str(), &mut out) {
                Err(errno) if !is_gone(errno) => return Err(errno.into()),
                _ => {}
            }
        }
        let is_main_alive = self.stat(own)?.is_some_and(|main| !main.is_exiting());
        Ok(if is_main_alive { out } else { Vec::new() })
    }

    /// Clears `out` and reads the tree below `root`, without `root`, into it: parents come before their children.
    ///
    /// A listed child counts only if its own `stat` names a parent in the tree: a pid that was reused meanwhile is not
    /// taken for the child. Zombies are listed too.
    ///
    /// The result is `OwnOnly` when a child may not be read, `Incomplete` when something exists and could not be read.
    /// Even a complete reading of a tree that changes is only a snapshot: repeat it until nothing new appears.
    pub fn descendants(&mut self, root: Pid, out: &mut Vec<Stat>) -> io::Result<Completeness> {
        out.clear();
        let mut completeness = Completeness::Complete;
        let mut inside = HashSet::from([root]);
        let mut children = Vec::new();
        let mut threads = None;
        let mut parent = root;
        let mut walked = 0;
        loop {
            children.clear();
            if let Err(errno) = self.add_children(parent, threads, &mut children) {
                completeness = completeness.and(Completeness::after(errno));
            }
            for &pid in &children {
                if inside.contains(&pid) {
                    continue;
                }
                match self.stat(pid) {
                    Ok(Some(stat)) if stat.parent.is_some_and(|parent| inside.contains(&parent)) => {
                        inside.insert(pid);
                        out.push(stat);
                    }
                    Ok(None) if self.hides_processes() && !is_free(pid) => {
                        completeness = completeness.and(Completeness::OwnOnly);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                        completeness = completeness.and(Completeness::after(errno));
                    }
                }
            }
            let Some(next) = out.get(walked) else {
                return Ok(completeness);
            };
            parent = next.pid;
            threads = Some(next.threads);
            walked += 1;
        }
    }

    /// Reads the ancestors of a process, the nearest first: its parent, the parent of that, as far up as this user may
    /// read.
    pub fn ancestors(&mut self, below: &Stat) -> io::Result<Vec<ProcessId>> {
        let mut found: Vec<ProcessId> = Vec::new();
        let mut next = below.parent;
        while let Some(pid) = next.filter(|_| found.len() < MOST_ANCESTORS) {
            let stat = match self.stat(pid) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
                // An ancestor that has ended since has left its child to another ancestor.
                Ok(None) if !self.hides_processes() => {
                    let child = found.last().map_or(below.pid, |id| id.pid);
                    let parent =
                        self.stat(child)?.and_then(|stat| stat.parent).filter(|parent| *parent != pid);
                    next = parent;
                    continue;
                }
                stat => stat?,
            };
            found.extend(stat.as_ref().map(Stat::id));
            next = stat.and_then(|stat| stat.parent);
        }
        Ok(found)
    }

    /// Adds the children of `pid` to `out`. `threads` is the number of threads a moment ago, if known.
    fn add_children(&mut self, pid: Pid, threads: Option<u32>, out: &mut Vec<Pid>) -> Result<(), Errno> {
        let mut tids = std::mem::take(&mut self.tids);
        tids.clear();
        // A single thread is the common case and needs no listing. A thread that appeared since then is like a thread
        // that appears after the listing.
        let listed = if threads == Some(1) || threads.is_none() && self.has_one_thread(pid) {
            tids.push(pid);
            Ok(())
        } else {
            self.numbers_in(ProcPath::of(pid, "task").as_c_str(), &mut tids)
        };
        let mut result = match listed {
            Err(errno) if is_gone(errno) => Ok(()),
            other => other,
        };
        let mut without_list = false;
        for &tid in &tids {
            match self.read_pids(ProcPath::of_task(pid, tid, "children").as_c_str(), out) {
                Err(Errno::NOENT) => without_list = true,
                Err(errno) if !is_gone(errno) => result = Err(errno),
                _ => {}
            }
        }
        self.tids = tids;
        // The file is missing when the thread is gone, and always when the kernel was built without
        // CONFIG_PROC_CHILDREN. Our own thread certainly exists.
        if without_list && self.open_file(c"thread-self/children").is_err() {
            return self.add_children_by_scan(pid, out);
        }
        result
    }

    /// Tells whether a process has one thread. The link count of its `task` is the number of threads plus two
    /// (`proc_task_getattr` in fs/proc/base.c); a main thread that has exited counts.
    fn has_one_thread(&self, pid: Pid) -> bool {
        let Ok(dir) = self.dir() else { return false };
        let task = rustix::fs::statat(dir, ProcPath::of(pid, "task").as_c_str(), AtFlags::empty());
        task.is_ok_and(|task| task.st_nlink == 3)
    }

    fn add_children_by_scan(&mut self, parent: Pid, out: &mut Vec<Pid>) -> Result<(), Errno> {
        let scanned = self.scan(|stat| {
            if stat.parent == Some(parent) {
                out.push(stat.pid);
            }
        });
        match scanned {
            Ok(Completeness::Complete) => Ok(()),
            Ok(Completeness::OwnOnly) => Err(Errno::ACCESS),
            Ok(Completeness::Incomplete) => Err(Errno::IO),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
}
