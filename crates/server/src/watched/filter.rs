//! The patterns that choose the paths of a watch.

/// The paths that a watch reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Paths that match one of these.
    Include(Vec<Pattern>),
    /// Paths that match none of these.
    Exclude(Vec<Pattern>),
}

impl Filter {
    /// Tells whether changes of a path are reported.
    pub fn passes(&self, path: &str) -> bool {
        match self {
            Filter::Include(patterns) => patterns.iter().any(|pattern| pattern.matches(path)),
            Filter::Exclude(patterns) => !patterns.iter().any(|pattern| pattern.matches(path)),
        }
    }

    /// Tells whether no path below a directory passes. A pattern that matches a directory matches every path below.
    pub fn excludes_below(&self, directory: &str) -> bool {
        matches!(self, Filter::Exclude(_)) && !self.passes(directory)
    }
}

/// A glob pattern: `*` and `?` do not match `/`, `**` does.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pattern(Vec<Part>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Part {
    /// This character.
    Exactly(char),
    /// One character of a name.
    One,
    /// Any characters of one name.
    InName,
    /// Any characters.
    Any,
}

impl Pattern {
    /// Reads a pattern.
    pub fn new(text: &str) -> Pattern {
        let mut parts = Vec::with_capacity(text.len());
        let mut rest = text.chars().peekable();
        while let Some(character) = rest.next() {
            parts.push(match character {
                '*' if rest.next_if_eq(&'*').is_some() => Part::Any,
                '*' => Part::InName,
                '?' => Part::One,
                other => Part::Exactly(other),
            });
        }
        Pattern(parts)
    }

    /// Tells whether the pattern matches whole names of a path, at any depth. The time is bounded by the lengths of both.
    fn matches(&self, path: &str) -> bool {
        let mut places = vec![false; self.0.len() + 1];
        let mut before = '/';
        // Whether a place is reached.
        let mut is_alive = false;
        for character in path.chars().chain(['/']) {
            if before == '/'
                && let Some(first) = places.first_mut()
            {
                *first = true;
                is_alive = true;
            }
            before = character;
            if !is_alive {
                continue;
            }
            self.skip_empty(&mut places);
            if character == '/' && places.last() == Some(&true) {
                return true;
            }
            is_alive = self.step(&mut places, character);
        }
        false
    }

    /// Adds the places behind parts that may match nothing.
    fn skip_empty(&self, places: &mut [bool]) {
        let mut is_reached = false;
        let parts = self.0.iter().map(Some).chain([None]);
        for (place, part) in places.iter_mut().zip(parts) {
            *place |= is_reached;
            is_reached = *place && matches!(part, Some(Part::InName | Part::Any));
        }
    }

    /// Moves the places over one more character. Returns whether one is reached.
    fn step(&self, places: &mut [bool], character: char) -> bool {
        let (mut is_passed, mut is_alive) = (false, false);
        let parts = self.0.iter().map(Some).chain([None]);
        for (place, part) in places.iter_mut().zip(parts) {
            let was_here = *place;
            let stays = match part {
                Some(Part::Any) => true,
                Some(Part::InName) => character != '/',
                _ => false,
            };
            *place = is_passed || (was_here && stays);
            is_alive |= *place;
            is_passed = was_here
                && match part {
                    Some(Part::Exactly(wanted)) => *wanted == character,
                    Some(Part::One) => character != '/',
                    _ => false,
                };
        }
        is_alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names_at_any_depth() {
        for (pattern, path, is_match) in [
            ("*.ts", "/w/a.ts", true),
            ("*.ts", "/w/a.tsx", false),
            ("*.ts", "/w/a.ts/inside", true),
            ("*.ts", "/w/.ts", true),
            (".git", "/w/.git/config", true),
            (".git", "/w/.gitignore", false),
            (".git", "/w/a.git", false),
            ("src/*.rs", "/w/src/lib.rs", true),
            ("src/*.rs", "/w/src/deep/lib.rs", false),
            ("src/**", "/w/src/deep/lib.rs", true),
            ("src/**", "/w/src", false),
            ("/w/**.rs", "/w/deep/lib.rs", true),
            ("/w/*", "/v/w/a", false),
            ("a?c", "/w/abc", true),
            ("a?c", "/w/a/c", false),
            ("?", "/w/\u{fffd}", true),
            ("a.c", "/w/abc", false),
            ("***", "/w", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(path), is_match, "{pattern} {path}");
        }
    }

    #[test]
    fn many_stars_take_no_longer_than_the_lengths_allow() {
        let pattern = Pattern::new(&"*a".repeat(200));
        assert!(!pattern.matches(&format!("/{}b", "a".repeat(4000))));
    }
}
