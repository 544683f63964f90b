//! Trees of great width, depth, or weight.

use super::yard::{Never, Yard};

fn flat(yard: &Yard, count: u32) -> Never {
    for _ in 0..count {
        yard.child(Yard::sleeper)?;
    }
    yard.stands(usize::try_from(count).unwrap_or(0) + 1)?;
    yard.lead()
}

pub(super) fn wide(yard: &Yard) -> Never {
    flat(yard, yard.number_or(64, 4000))
}

pub(super) fn close_pids(yard: &Yard) -> Never {
    flat(yard, yard.number_or(20, 100))
}

pub(super) fn deep(yard: &Yard) -> Never {
    fn below(yard: &Yard, left: u32) -> Never {
        if left > 1 {
            yard.child(|yard| below(yard, left - 1))?;
        }
        yard.sleeper()
    }
    let depth = yard.number_or(32, 1000);
    yard.child(|yard| below(yard, depth))?;
    yard.stands(usize::try_from(depth).unwrap_or(0) + 1)?;
    yard.lead()
}

pub(super) fn threads(yard: &Yard) -> Never {
    let count = yard.number_or(40, 1000);
    yard.child(|yard| {
        for _ in 0..count {
            let thread = yard.clone();
            std::thread::Builder::new().stack_size(64 * 1024).spawn(move || thread.linger())?;
        }
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn memory(yard: &Yard) -> Never {
    let mebibytes = usize::try_from(yard.number_or(20, 1000)).unwrap_or(0);
    yard.child(|yard| {
        let touched = vec![1_u8; mebibytes << 20];
        yard.register()?;
        std::hint::black_box(&touched);
        yard.linger()
    })?;
    yard.stands(2)?;
    yard.lead()
}
