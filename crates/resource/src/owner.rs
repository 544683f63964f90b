//! The owner of resources, and its traces.

/// The sandbox that owns resources; its traces are in names, attributes and comments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceOwner {
    /// The short id of the sandbox.
    pub id: String,
    /// The id of the boot in which the sandbox was made.
    pub boot: String,
}

impl ResourceOwner {
    /// Returns `penfold-<id>`, the name of the network namespace and the source of mounts.
    pub fn name(&self) -> String {
        format!("penfold-{}", self.id)
    }

    /// Returns `pf-<id>`: the 15 characters that the name of a link may have.
    pub fn link_name(&self) -> String {
        format!("pf-{}", self.id)
    }

    /// Returns the mark of a directory.
    pub(crate) fn mark(&self) -> String {
        format!("{} {}", self.id, self.boot)
    }

    /// Returns the alias of a link.
    pub(crate) fn alias(&self) -> String {
        format!("penfold {} {}", self.id, self.boot)
    }

    /// Returns a positive number that is the same for the same id and word, in a range where the kernel chooses none
    /// on its own: the kernel counts from 0.
    pub(crate) fn number(&self, word: &str) -> i32 {
        // FNV-1a: the number is in records, so the function must never change.
        let hash = self
            .id
            .bytes()
            .chain(word.bytes())
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        i32::try_from(hash & 0x3fff_ffff | 0x4000_0000).unwrap_or(i32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_depends_on_id_and_word_only() {
        let owner = |id: &str| ResourceOwner { id: id.to_owned(), boot: "b".to_owned() };
        let number = owner("3f9a1c2b7d04").number("net");
        assert_eq!(number, ResourceOwner { boot: "c".to_owned(), ..owner("3f9a1c2b7d04") }.number("net"));
        assert!(number >= 0x4000_0000);
        assert_ne!(number, owner("3f9a1c2b7d05").number("net"));
        assert_ne!(number, owner("3f9a1c2b7d04").number("other"));
    }

    #[test]
    fn a_link_name_fits() {
        let owner = ResourceOwner { id: "3f9a1c2b7d04".to_owned(), boot: String::new() };
        assert_eq!(owner.link_name().len(), 15);
    }
}
