//! The password of a cluster. Every user of the machine and every container in its network can
//! connect to loopback, so the servers require a password.
//!
//! It is in the URL, in a file that only this user can read, and in this module, so that a client
//! of this process knows the password by the port. It is never in a command line, which every user
//! can read.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard};

/// A password: letters and digits, so that it is the same in a URL, a file and a statement.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    /// A random password.
    pub(crate) fn new() -> io::Result<Self> {
        let mut bytes = [0; 16];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Without the password, which must not end up in logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Remembers the password of a port.
pub(crate) fn remember(port: u16, secret: &Secret) {
    known().insert(port, secret.clone());
}

/// Forgets the password of a port, unless a new server there has set another one meanwhile.
pub(crate) fn forget(port: u16, secret: &Secret) {
    let mut known = known();
    if known.get(&port) == Some(secret) {
        known.remove(&port);
    }
}

/// The password of a port that belongs to a server of this process.
pub(crate) fn of(port: u16) -> Option<Secret> {
    known().get(&port).cloned()
}

fn known() -> MutexGuard<'static, BTreeMap<u16, Secret>> {
    static KNOWN: Mutex<BTreeMap<u16, Secret>> = Mutex::new(BTreeMap::new());
    KNOWN.lock().unwrap_or_else(|poison| poison.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_long_random_and_not_printed() {
        let one = Secret::new().unwrap();
        let two = Secret::new().unwrap();
        assert_ne!(one, two);
        assert_eq!(one.as_str().len(), 32);
        assert_eq!(format!("{one:?}"), "Secret");
    }

    #[test]
    fn forgetting_an_old_password_keeps_a_newer_one() {
        let old = Secret::new().unwrap();
        let new = Secret::new().unwrap();
        remember(1, &old);
        remember(1, &new);
        forget(1, &old);
        assert_eq!(of(1), Some(new.clone()));
        forget(1, &new);
        assert_eq!(of(1), None);
    }
}
