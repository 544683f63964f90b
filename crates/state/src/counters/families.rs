//! The counters as monitors see them: names, labels, help texts.

use penfold_teardown::Cause;

use super::StartMode;
use super::store::{Counters, DAMAGED};

/// The upper bounds of the buckets of `penfold_teardown_seconds`, in microseconds.
pub const BOUNDS_US: [u64; 11] = [
    1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 60_000_000,
];

const MODES: [StartMode; 2] = [StartMode::Detached, StartMode::Foreground];

const CAUSES: [Cause; 14] = [
    Cause::Exit,
    Cause::Signal,
    Cause::StartFailed,
    Cause::Timeout,
    Cause::Ttl,
    Cause::Idle,
    Cause::Memory,
    Cause::Oom,
    Cause::Stdin,
    Cause::Stop,
    Cause::Kill,
    Cause::Owner,
    Cause::Supervisor,
    Cause::Lost,
];

/// The kinds of leaks that are collected.
pub const LEAKS: [&str; 11] = [
    "record",
    "processes",
    "cgroup",
    "directory",
    "netns",
    "link",
    "mount",
    "loop",
    "name",
    "file",
    "container",
];

/// The kinds of resources that are released: how a step begins that releases one, and the value of the label.
const RELEASED: [(&str, &str); 11] = [
    ("cgroup", "cgroup"),
    ("scope", "scope"),
    ("directory", "directory"),
    ("record", "record"),
    ("name", "name"),
    ("network namespace", "netns"),
    ("link", "link"),
    ("tap", "tap"),
    ("mount", "mount"),
    ("loop device", "loop"),
    ("", "path"),
];

/// A resource of another kind.
const OTHER: &str = "other";

/// Counters of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct CounterFamily {
    /// The name, without the prefix `penfold_` and without the suffix `_total` of a counter.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// One for each set of labels.
    pub samples: Vec<CounterSample>,
}

/// A counter with its labels.
#[derive(Debug, Clone, PartialEq)]
pub struct CounterSample {
    /// Names and values.
    pub labels: Vec<(&'static str, &'static str)>,
    /// The number.
    pub value: CounterValue,
}

/// The value of a counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CounterValue {
    /// A number of events.
    Count(u64),
    /// Times.
    Histogram {
        /// The sum of all, in microseconds.
        sum_us: u64,
        /// The number in each bucket of [`BOUNDS_US`], and last those above.
        buckets: Vec<u64>,
    },
}

impl Counters {
    /// All counters, also those that are zero: a monitor that has never seen a counter misses its first step.
    pub fn families(&self) -> Vec<CounterFamily> {
        let number = |key: String| self.numbers.get(&key).copied().unwrap_or(0);
        let count = |key| CounterValue::Count(number(key));
        let by_kind = |name, help, key: &'static str, kinds: &[&'static str]| {
            let sample =
                |&kind| CounterSample { labels: vec![("kind", kind)], value: count(format!("{key}/{kind}")) };
            CounterFamily { name, help, samples: kinds.iter().map(sample).collect() }
        };
        let single = |name, help, value| CounterFamily {
            name,
            help,
            samples: vec![CounterSample { labels: Vec::new(), value }],
        };
        let buckets = (0..=BOUNDS_US.len()).map(|index| number(format!("seconds/{index}"))).collect();
        let seconds = CounterValue::Histogram { sum_us: number("seconds/sum_us".to_owned()), buckets };
        let ended = ends().map(|(mode, cause, verified)| CounterSample {
            labels: vec![
                ("mode", mode.word()),
                ("cause", cause_word(cause)),
                ("verified", if verified { "true" } else { "false" }),
            ],
            value: count(ended_key(mode, cause, verified)),
        });
        vec![
            CounterFamily {
                name: "sandboxes_ended",
                help: "Sandboxes whose end penfold has answered for; in the foreground only if something went wrong",
                samples: ended.collect(),
            },
            single("teardown_seconds", "Seconds from the begin of a teardown to its answer", seconds),
            by_kind(
                "leaks_found",
                "Leaks that gc or a recovery found and tried to mend",
                "leak-found",
                &LEAKS,
            ),
            by_kind("leaks_mended", "Leaks that gc or a recovery observed gone", "leak-mended", &LEAKS),
            single(
                "rmdir_busy",
                "Teardowns in which the kernel refused to remove a cgroup that looked empty",
                count("rmdir-busy".to_owned()),
            ),
            by_kind(
                "releases_failed",
                "Resources that a teardown could not release",
                "release-failed",
                &released_kinds(),
            ),
            single(
                "counters_damaged",
                "Damaged files of counters; all counters began again with zero",
                count(DAMAGED.to_owned()),
            ),
        ]
    }
}

fn ends() -> impl Iterator<Item = (StartMode, Cause, bool)> {
    let causes = MODES.into_iter().flat_map(|mode| CAUSES.into_iter().map(move |cause| (mode, cause)));
    causes.flat_map(|(mode, cause)| [true, false].map(|verified| (mode, cause, verified)))
}

fn released_kinds() -> Vec<&'static str> {
    RELEASED.iter().map(|&(_, kind)| kind).chain([OTHER]).collect()
}

/// The key of the ends of sandboxes.
pub(super) fn ended_key(mode: StartMode, cause: Cause, verified: bool) -> String {
    let verified = if verified { "verified" } else { "unverified" };
    format!("ended/{}/{}/{verified}", mode.word(), cause_word(cause))
}

/// The bucket of a time: an index of [`BOUNDS_US`], or their number.
pub(super) fn time_bucket(us: u64) -> usize {
    BOUNDS_US.iter().position(|&bound| us <= bound).unwrap_or(BOUNDS_US.len())
}

/// The kind of a resource, from the words of its step: `directory`, for ``directory `/a` ``.
pub(super) fn resource_kind(what: &str) -> &'static str {
    let words = what.split(['`', '/']).next().unwrap_or_default();
    let is_kind = |begin: &str| {
        let mut words = words.split(' ').filter(|word| !word.is_empty());
        match begin {
            "" => words.next().is_none(),
            // Its first word is the kind of the file system.
            "mount" => words.any(|word| word == begin),
            _ => words.next() == begin.split(' ').next(),
        }
    };
    RELEASED.iter().find(|(begin, _)| is_kind(begin)).map_or(OTHER, |&(_, kind)| kind)
}

/// The name of a cause, as in reports.
pub(super) fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::Exit => "exit",
        Cause::Signal => "signal",
        Cause::StartFailed => "start-failed",
        Cause::Timeout => "timeout",
        Cause::Ttl => "ttl",
        Cause::Idle => "idle",
        Cause::Memory => "memory",
        Cause::Oom => "oom",
        Cause::Stdin => "stdin",
        Cause::Stop => "stop",
        Cause::Kill => "kill",
        Cause::Owner => "owner",
        Cause::Supervisor => "supervisor",
        Cause::Lost => "lost",
    }
}

/// Every key of this version.
#[cfg(test)]
pub(super) fn counter_keys() -> Vec<String> {
    let ended = ends().map(|(mode, cause, verified)| ended_key(mode, cause, verified));
    let seconds = (0..=BOUNDS_US.len()).map(|index| format!("seconds/{index}"));
    let leaks = LEAKS.iter().flat_map(|kind| [format!("leak-found/{kind}"), format!("leak-mended/{kind}")]);
    let released = released_kinds().into_iter().map(|kind| format!("release-failed/{kind}"));
    let single = ["seconds/sum_us", "rmdir-busy", DAMAGED].map(str::to_owned);
    ended.chain(seconds).chain(leaks).chain(released).chain(single).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::counters::store;

    #[test]
    fn causes_have_the_words_of_reports() {
        for cause in CAUSES {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause_word(cause));
        }
    }

    #[test]
    fn steps_tell_the_kind_of_resource() {
        for (what, kind) in [
            ("cgroup /sys/fs/cgroup/penfold-1", "cgroup"),
            ("directory /tmp/name of a thing", "directory"),
            ("directory `/srv/mount`", "directory"),
            ("overlay mount `/srv/x`", "mount"),
            ("bind mount `/srv/x`", "mount"),
            ("network namespace `n`", "netns"),
            ("tap `t` in network namespace `n`", "tap"),
            ("link `l`", "link"),
            ("loop device of `/x`", "loop"),
            ("name web", "name"),
            ("notes in outer sandboxes", "other"),
            ("`/srv/own`", "path"),
        ] {
            assert_eq!(resource_kind(what), kind, "{what}");
        }
    }

    #[test]
    fn all_counters_fit_at_ten_billion_each() {
        let numbers = counter_keys().into_iter().map(|key| (key, 10_000_000_000)).collect();
        assert!(store::counters_text(&numbers).is_some());
    }

    #[test]
    fn every_key_is_shown() {
        let numbers: BTreeMap<_, _> = counter_keys().into_iter().map(|key| (key, 1)).collect();
        let shown: u64 = Counters { numbers: numbers.clone(), is_damaged: false }
            .families()
            .iter()
            .flat_map(|family| &family.samples)
            .map(|sample| match &sample.value {
                CounterValue::Count(number) => *number,
                CounterValue::Histogram { sum_us, buckets } => sum_us + buckets.iter().sum::<u64>(),
            })
            .sum();
        assert_eq!(usize::try_from(shown).unwrap(), numbers.len());
    }
}
