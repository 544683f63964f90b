//! The parts that followers share: what one of them gets, each other one at the same place gets too.

use std::io;
use std::sync::{Arc, Weak};

use super::Source;

/// The most steps that are kept for other followers.
const MOST: usize = 32;

/// A part of a stream.
pub(super) type Part = Arc<[u8]>;

/// The steps that other followers can take without a read. A part is kept to the end of its round, and as long as one follower holds it:
/// many followers that are slow at one place take the memory of one.
pub(super) struct Steps<S: Source>(Vec<Step<S>>);

/// What followers at one place get.
struct Step<S: Source> {
    from: S::Place,
    form: S::Form,
    to: S::Place,
    /// Whether there may be more.
    has_more: bool,
    part: Weak<[u8]>,
    /// The part, in its round.
    held: Option<Part>,
}

impl<S: Source> Default for Steps<S> {
    fn default() -> Steps<S> {
        Steps(Vec::new())
    }
}

impl<S: Source> Steps<S> {
    /// Takes the step at a place, and moves the place. Returns the part, which may be empty, and whether there may be more.
    ///
    /// # Errors
    /// Those of [`Source::read`].
    pub(super) fn take(
        &mut self,
        source: &mut S,
        place: &mut S::Place,
        form: &S::Form,
    ) -> io::Result<(Part, bool)> {
        let mut known = self.0.iter().rev().filter(|step| step.from == *place && step.form == *form);
        if let Some((part, step)) = known.find_map(|step| Some((step.part.upgrade()?, step))) {
            place.clone_from(&step.to);
            return Ok((part, step.has_more));
        }
        let from = place.clone();
        let mut bytes = Vec::new();
        let has_more = source.read(place, form, &mut bytes)?;
        let part = Part::from(bytes);
        if self.0.len() == MOST {
            self.0.remove(0);
        }
        self.0.push(Step {
            from,
            form: form.clone(),
            to: place.clone(),
            has_more,
            part: Arc::downgrade(&part),
            held: Some(Arc::clone(&part)),
        });
        Ok((part, has_more))
    }

    /// Ends a round: from now on, there may be more after each part.
    pub(super) fn end_round(&mut self) {
        self.0.retain_mut(|step| {
            (step.has_more, step.held) = (true, None);
            step.part.strong_count() > 0
        });
    }
}
