//! Numbers that look random.

/// A generator whose numbers come again with the same seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Prng(u64);

impl Prng {
    /// Starts at a seed.
    pub fn of(seed: u64) -> Prng {
        Prng(seed)
    }

    /// Starts at a seed that nobody can foresee; gives the seed, to be printed.
    pub fn fresh() -> (Prng, u64) {
        let mut seed = [0_u8; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty()).unwrap();
        let seed = u64::from_ne_bytes(seed);
        (Prng(seed), seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// One of these.
    pub fn one_of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let count = u64::try_from(choices.len()).unwrap();
        &choices[usize::try_from(self.below(count)).unwrap()]
    }

    /// Puts values into a random order.
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for end in (1..values.len()).rev() {
            let other = self.below(u64::try_from(end + 1).unwrap());
            values.swap(end, usize::try_from(other).unwrap());
        }
    }
}
