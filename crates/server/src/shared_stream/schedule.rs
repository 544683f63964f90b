//! For tests: runs threads one step at a time, in every order with a bounded number of preemptions.
//!
//! A step ends where a thread is about to lock a queue or the streams, to take the followers that have joined, to ring or clear a
//! `Wake`, or to wait. What the threads share changes only there, so no other moments make a difference. A thread that
//! holds a lock makes no further step.

use std::cell::RefCell;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Wake, Waker};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

thread_local! {
    static OWN: RefCell<Option<Actor>> = const { RefCell::new(None) };
}

/// Ends a step of a scheduled thread.
pub(super) fn step() {
    pause(|| Need::Nothing);
}

/// Ends a step: the next one begins once this descriptor is readable.
pub(super) fn await_readable(fd: BorrowedFd<'_>) {
    pause(|| Need::Readable(fd.try_clone_to_owned().unwrap()));
}

/// Ends a step: the next one begins once the waker of this sign has been used.
pub(super) fn await_sign(sign: &Arc<Sign>) {
    pause(|| Need::Sign(Arc::clone(sign)));
}

fn pause(need: impl FnOnce() -> Need) {
    let own = OWN.with(|own| own.borrow().clone());
    if let Some(own) = own {
        own.pause(need());
    }
}

/// Whether a waker has been used.
#[derive(Debug, Default)]
pub(super) struct Sign(AtomicBool);

impl Sign {
    /// Returns a waker, and forgets its earlier uses.
    pub(super) fn waker(self: &Arc<Sign>) -> Waker {
        self.0.store(false, Ordering::SeqCst);
        Waker::from(Arc::clone(self))
    }
}

impl Wake for Sign {
    fn wake(self: Arc<Sign>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What a thread needs for its next step.
#[derive(Debug)]
enum Need {
    /// It makes a step now.
    Running,
    Nothing,
    Readable(OwnedFd),
    Sign(Arc<Sign>),
    /// It has ended.
    Ended,
}

impl Need {
    fn is_met(&self) -> bool {
        match self {
            Need::Running | Need::Ended => false,
            Need::Nothing => true,
            Need::Sign(sign) => sign.0.load(Ordering::SeqCst),
            Need::Readable(fd) => {
                let fd = fd.as_fd();
                let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
                poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)).unwrap() > 0
            }
        }
    }
}

/// The threads of one run, and whose turn it is.
#[derive(Debug)]
struct Turns {
    state: Mutex<TurnState>,
    /// For the thread that chooses.
    is_paused: Condvar,
    /// For the thread whose turn it is.
    has_turn: Vec<Condvar>,
}

#[derive(Debug)]
struct TurnState {
    turn: Option<usize>,
    needs: Vec<Need>,
}

impl Turns {
    fn lock(&self) -> MutexGuard<'_, TurnState> {
        self.state.lock().unwrap()
    }
}

/// A thread of a run.
#[derive(Debug, Clone)]
struct Actor {
    turns: Arc<Turns>,
    number: usize,
}

impl Actor {
    fn pause(&self, need: Need) {
        let mut state = self.turns.lock();
        self.yield_turn(&mut state, need);
        while state.turn != Some(self.number) {
            state = self.turns.has_turn[self.number].wait(state).unwrap();
        }
        state.needs[self.number] = Need::Running;
    }

    fn yield_turn(&self, state: &mut TurnState, need: Need) {
        state.needs[self.number] = need;
        state.turn = None;
        self.turns.is_paused.notify_one();
    }
}

/// Ends an actor, also by a panic.
struct Ending(Actor);

impl Drop for Ending {
    fn drop(&mut self) {
        OWN.with(|own| own.borrow_mut().take());
        self.0.yield_turn(&mut self.0.turns.lock(), Need::Ended);
    }
}

/// The choice at one step.
#[derive(Debug, Clone, Copy)]
struct Choice {
    chosen: usize,
    options: usize,
}

/// Runs the threads that `set` makes again and again, each time in another order, until there is no further order with at most this
/// many preemptions. Returns the number of orders. Panics if all threads that are left wait for each other.
pub(super) fn run_all_orders(
    preemptions: usize,
    mut set: impl FnMut() -> Vec<Box<dyn FnOnce() + Send>>,
) -> usize {
    let mut path = Vec::new();
    for count in 1.. {
        run_order(preemptions, &mut path, set());
        while path.pop_if(|choice: &mut Choice| choice.chosen + 1 == choice.options).is_some() {}
        let Some(last) = path.last_mut() else { return count };
        last.chosen += 1;
    }
    unreachable!("a run without end")
}

fn run_order(preemptions: usize, path: &mut Vec<Choice>, bodies: Vec<Box<dyn FnOnce() + Send>>) {
    let needs = bodies.iter().map(|_| Need::Running).collect();
    let turns = Arc::new(Turns {
        state: Mutex::new(TurnState { turn: None, needs }),
        is_paused: Condvar::new(),
        has_turn: bodies.iter().map(|_| Condvar::new()).collect(),
    });
    let start = |(number, body): (usize, Box<dyn FnOnce() + Send>)| {
        let actor = Actor { turns: Arc::clone(&turns), number };
        thread::spawn(move || {
            let _ending = Ending(actor.clone());
            OWN.with(|own| own.borrow_mut().replace(actor.clone()));
            actor.pause(Need::Nothing);
            body();
        })
    };
    let threads: Vec<_> = bodies.into_iter().enumerate().map(start).collect();
    let (mut left, mut current, mut steps) = (preemptions, None, Vec::new());
    loop {
        let mut state = turns.lock();
        while state.turn.is_some() || state.needs.iter().any(|need| matches!(need, Need::Running)) {
            state = turns.is_paused.wait(state).unwrap();
        }
        if state.needs.iter().all(|need| matches!(need, Need::Ended)) {
            break;
        }
        let mut ready: Vec<usize> =
            (0..state.needs.len()).filter(|number| state.needs[*number].is_met()).collect();
        assert!(!ready.is_empty(), "after the steps {steps:?}, each waits: {:?}", state.needs);
        let can_go_on = current.is_some_and(|current| ready.contains(&current));
        if can_go_on {
            ready.sort_by_key(|number| Some(*number) != current);
            ready.truncate(if left == 0 { 1 } else { ready.len() });
        }
        if path.len() == steps.len() {
            path.push(Choice { chosen: 0, options: ready.len() });
        }
        let next = ready[path[steps.len()].chosen.min(ready.len() - 1)];
        left -= usize::from(can_go_on && Some(next) != current);
        current = Some(next);
        steps.push(next);
        state.turn = current;
        turns.has_turn[next].notify_one();
    }
    for thread in threads {
        thread.join().expect("no thread of a run fails");
    }
}
