//! Bodies that come, read at any pace and go, while a text grows.

use super::*;

/// The clients at one time.
const CLIENTS: u64 = 6;
/// The lines of the text.
const LINES: u32 = 4000;

/// Numbers that look random: xorshift.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }

    /// Lets other threads run for a while, or not.
    fn rest(&mut self) {
        for _ in 0..self.below(40).saturating_sub(30) {
            std::thread::yield_now();
        }
    }
}

/// Follows from anywhere, for a while or to the end. Returns whether the end came.
async fn follow_once(room: &Room, numbers: &mut Numbers) -> bool {
    let place = numbers.below(room.text.written.lock().unwrap().len() + 1);
    let form = 1 + numbers.below(64);
    let most = if numbers.below(4) == 0 { usize::MAX } else { numbers.below(400) };
    let mut body = room.follow(place, form);
    let mut all = Vec::new();
    while all.len() < most {
        numbers.rest();
        let Some(part) = next(&mut body).await else { break };
        all.extend(part.unwrap());
    }
    let has_ended = all.ends_with(b"|end");
    all.truncate(all.len() - if has_ended { 4 } else { 0 });
    let written = room.text.written.lock().unwrap();
    assert_eq!(all, written[place..place + all.len()], "from {place}");
    assert!(!has_ended || place + all.len() == written.len(), "the end came early");
    has_ended
}

/// spec: 15.16
#[test]
fn bodies_at_any_pace_that_come_and_go_get_everything_once() {
    let room = Room::new();
    let free = room.app.engine.free_followers();
    std::thread::scope(|scope| {
        for client in 1..=CLIENTS {
            let mut numbers = Numbers(client);
            let room = &room;
            scope.spawn(move || {
                let follow = async {
                    while !room.text.has_ended.load(Ordering::SeqCst) {
                        follow_once(room, &mut numbers).await;
                    }
                    while !follow_once(room, &mut numbers).await {}
                };
                block_on(follow);
            });
        }
        let mut numbers = Numbers(CLIENTS + 1);
        for line in 0..LINES {
            room.text.write(format!("line {line}\n").as_bytes());
            numbers.rest();
        }
        room.text.end();
    });
    let deadline = Instant::now() + DEADLINE;
    while room.app.engine.free_followers() < free {
        assert!(Instant::now() < deadline, "a thread goes on");
        std::thread::yield_now();
    }
}
