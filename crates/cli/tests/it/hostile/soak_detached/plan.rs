//! What each client does: a pure function of the seed, the client's number and the step.

/// How many names there are: sandboxes are named after the slot that they were started in.
pub const SLOTS: usize = 12;

/// What is run, and the code that it exits with if nobody interferes.
pub const SCRIPTS: [(&str, Option<i32>); 9] = [
    ("echo hello; exit 7", Some(7)),
    ("echo hello; sleep 0.3; exit 4", Some(4)),
    ("echo hello; setsid -f sleep 50; (setsid sleep 50 &); exit 5", Some(5)),
    ("echo hello; for i in 1 2 3 4 5 6; do sleep 50 & done; sleep 1; exit 6", Some(6)),
    ("echo hello; exec sleep 50", None),
    ("trap '' TERM HUP; echo hello; setsid -f sleep 50; sleep 50 & while :; do sleep 1; done", None),
    ("trap 'exit 42' TERM; echo hello; while :; do sleep 0.05; done", None),
    ("echo hello; head -c 100000 /dev/zero | tr '\\0' x; sleep 50 & exec sleep 50", None),
    ("echo hello; (setsid sh -c 'while :; do setsid -f sleep 0.2; sleep 0.1; done' &); exec sleep 50", None),
];

/// Hostile trees and their sizes. Those that attack penfold are left out: that is done by the clients.
pub const HOSTILE: [(&str, u32); 38] = [
    ("plain", 1),
    ("ignore-term", 1),
    ("block-all", 1),
    ("own-group", 1),
    ("setsid", 1),
    ("daemon", 1),
    ("daemon-closed-fds", 1),
    ("daemon-holds-pipe", 1),
    ("thread-child", 1),
    ("subreaper", 1),
    ("subreaper-ignores-term", 1),
    ("zombies", 20),
    ("zombie-main", 1),
    ("hydra", 3),
    ("watchers", 1),
    ("fork-on-term", 1),
    ("storm", 10),
    ("wide", 30),
    ("deep", 20),
    ("threads", 20),
    ("stopped", 1),
    ("stopped-term-pending", 1),
    ("traced", 1),
    ("vfork", 1),
    ("undumpable", 1),
    ("close-pids", 20),
    ("pidns", 1),
    ("user-pidns", 1),
    ("mountns-tmpfs", 1),
    ("pty", 1),
    ("hasty", 1),
    // From here on without a marker, with more cgroups than the leaf, or with another pid at every look, which only luck
    // meets without a leaf once the supervisors are killed (SPECIFICATION.md, limit 1): for sandboxes with a leaf.
    ("comet", 1),
    ("zombie-leader", 1),
    ("renamed", 1),
    ("no-environ", 1),
    ("moved-cgroup", 1),
    ("child-cgroups", 1),
    ("frozen-v2", 1),
];
/// How many of them are known by their marker alone.
pub const MARKED: usize = 31;

/// Numbers that look random.
pub struct Random(u64);

impl Random {
    pub fn of(seed: u64, client: usize, step: usize) -> Random {
        let number = |number: usize| u64::try_from(number).unwrap();
        Random(seed ^ (number(client) << 56) ^ (number(step) << 24))
    }

    /// `SplitMix64`.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 33).unwrap() % most
    }

    fn one<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn in_a_hundred(&mut self, share: usize) -> bool {
        self.below(100) < share
    }
}

/// How a sandbox is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Id,
    Prefix,
    Name,
}

/// One sandbox: the last that was started in a slot.
#[derive(Debug, Clone, Copy)]
pub struct Whom {
    pub slot: usize,
    pub by: By,
}

/// What is started.
#[derive(Debug, Clone, Copy)]
pub enum Tree {
    Script(usize),
    Hostile(usize),
}

/// How.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "flags of `run`")]
pub struct Start {
    pub slot: usize,
    pub tree: Tree,
    /// Index of the levels that work here.
    pub level: usize,
    pub ttl: Option<&'static str>,
    pub idle: bool,
    pub remove: bool,
    pub scratch: bool,
    pub terminal: bool,
    pub keep: bool,
}

/// Who of those that look after a sandbox is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Outer,
    Inner,
    Both,
}

/// What is done to a file of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    StateMissing,
    StateEmpty,
    StateTruncated,
    StateGarbage,
    StateNewer,
    StateSaysOver,
    StateStranger,
    IntentMissing,
    IntentGarbage,
    NameMissing,
    NameForged,
    SocketMissing,
    LogGone,
    RecordGone,
}

const DAMAGES: [Damage; 14] = [
    Damage::StateMissing,
    Damage::StateEmpty,
    Damage::StateTruncated,
    Damage::StateGarbage,
    Damage::StateNewer,
    Damage::StateSaysOver,
    Damage::StateStranger,
    Damage::IntentMissing,
    Damage::IntentGarbage,
    Damage::NameMissing,
    Damage::NameForged,
    Damage::SocketMissing,
    Damage::LogGone,
    Damage::RecordGone,
];

/// A verb that looks at one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Inspect,
    Tree,
    Status,
    Report,
}

/// One step.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Start(Start),
    Ps,
    Look(Look, Whom),
    Logs(Whom),
    Wait(Whom),
    Exec(Whom, bool),
    Extend(Whom),
    /// `stop`, `kill`, `rm -f`
    End(&'static str, Whom),
    KillAll,
    Gc(bool),
    Doctor,
    /// Of supervisors: kills them, or stops them until some steps later.
    Hit(usize, Part, bool),
    Damage(usize, Damage),
}

/// What happens to the client itself on the way.
#[derive(Debug, Clone, Copy)]
pub struct Mishap {
    pub after_us: u64,
    /// It is stopped for so long; without, killed.
    pub stopped_for_us: Option<u64>,
}

/// A step of a client.
pub fn plan(seed: u64, client: usize, step: usize) -> (Act, Option<Mishap>) {
    let mut random = Random::of(seed, client, step);
    let act = act(&mut random);
    let after_us = u64::try_from(random.below(20_000)).unwrap();
    let mishap = match random.below(100) {
        0..4 => Some(Mishap { after_us, stopped_for_us: None }),
        4..7 => Some(Mishap { after_us, stopped_for_us: Some(200_000) }),
        _ => None,
    };
    (act, mishap)
}

fn act(random: &mut Random) -> Act {
    let whom = |random: &mut Random| Whom {
        slot: random.below(SLOTS),
        by: random.one(&[By::Id, By::Id, By::Prefix, By::Name]),
    };
    match random.below(100) {
        0..24 => Act::Start(start(random)),
        24..32 => Act::Ps,
        32..42 => {
            Act::Look(random.one(&[Look::Inspect, Look::Tree, Look::Status, Look::Report]), whom(random))
        }
        42..47 => Act::Logs(whom(random)),
        47..54 => Act::Wait(whom(random)),
        54..61 => Act::Exec(whom(random), random.in_a_hundred(30)),
        61..65 => Act::Extend(whom(random)),
        65..70 => Act::End("stop", whom(random)),
        70..76 => Act::End("kill", whom(random)),
        76..82 => Act::End("rm", whom(random)),
        82..83 => {
            if random.in_a_hundred(25) {
                Act::KillAll
            } else {
                Act::Ps
            }
        }
        83..85 => Act::Gc(random.in_a_hundred(25)),
        85..87 => Act::Doctor,
        87..94 => Act::Hit(
            random.below(SLOTS),
            random.one(&[Part::Outer, Part::Inner, Part::Both]),
            random.in_a_hundred(70),
        ),
        _ => Act::Damage(random.below(SLOTS), random.one(&DAMAGES)),
    }
}

fn start(random: &mut Random) -> Start {
    let tree = if random.in_a_hundred(55) {
        Tree::Script(random.below(SCRIPTS.len()))
    } else {
        Tree::Hostile(random.below(HOSTILE.len()))
    };
    Start {
        slot: random.below(SLOTS),
        tree,
        level: random.below(6),
        ttl: random.one(&[None, None, None, None, Some("0.4s"), Some("3s"), Some("1h")]),
        idle: random.in_a_hundred(8),
        remove: random.in_a_hundred(12),
        scratch: random.in_a_hundred(15),
        terminal: random.in_a_hundred(8),
        keep: random.in_a_hundred(20),
    }
}
