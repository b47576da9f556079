//! The keys whose rows were mixed when this client last saw them.
//!
//! An exclusive claim is first tried with the statement for rows that are not mixed, which does
//! nothing to one that is. On a key that readers use all the time, that would be a round trip in
//! vain for each request. This is a hint only: both statements look at the row itself.

use std::collections::HashSet;

use crate::key::Key;
use crate::support::sync::Mutex;

/// More are forgotten.
const CAPACITY: usize = 1024;

/// The keys whose rows were mixed when last seen.
#[derive(Debug, Default)]
pub(crate) struct MixedKeys(Mutex<HashSet<Key>>);

impl MixedKeys {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.0.lock().contains(key)
    }

    /// A response showed whether the row is mixed.
    pub(crate) fn set(&self, key: &Key, is_mixed: bool) {
        let mut keys = self.0.lock();
        if !is_mixed {
            keys.remove(key);
        } else if !keys.contains(key) {
            if keys.len() >= CAPACITY {
                keys.clear();
            }
            keys.insert(key.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_grow_without_end() {
        let mixed = MixedKeys::default();
        for number in 0..3 * CAPACITY {
            let key = Key::new(format!("k/{number}")).unwrap();
            mixed.set(&key, true);
            assert!(mixed.contains(&key));
        }
        assert!(mixed.0.lock().len() <= CAPACITY);
        let last = Key::new(format!("k/{}", 3 * CAPACITY - 1)).unwrap();
        mixed.set(&last, false);
        assert!(!mixed.contains(&last));
    }
}
