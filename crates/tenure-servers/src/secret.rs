//! The password of a cluster. Loopback is every user of the machine and every container in its
//! network: a server that can do something for whoever asks has to know who asks.
//!
//! It is in the URL, in a file that only this user can read, and here, so that what asks a port of
//! a cluster that this process runs need not carry it along. It is never in a command line, which
//! everybody can read.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, MutexGuard};

/// A password: letters and digits, so that it is the same in a URL, a file and a statement.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Secret(Arc<str>);

impl Secret {
    /// One that nobody can guess.
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

/// Not shown: what is printed for people ends in logs.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// From now on this port wants that password.
pub(crate) fn remember(port: u16, secret: &Secret) {
    known().insert(port, secret.clone());
}

/// The port is somebody else's now, unless it has got another password meanwhile.
pub(crate) fn forget(port: u16, secret: &Secret) {
    let mut known = known();
    if known.get(&port) == Some(secret) {
        known.remove(&port);
    }
}

/// What a port of this process wants.
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
    fn a_password_is_long_and_new_each_time_and_not_shown() {
        let (one, two) = (Secret::new().unwrap(), Secret::new().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.as_str().len(), 32);
        assert_eq!(format!("{one:?}"), "Secret");
    }

    #[test]
    fn a_port_that_has_another_password_by_now_keeps_it() {
        let (old, new) = (Secret::new().unwrap(), Secret::new().unwrap());
        remember(1, &old);
        remember(1, &new);
        forget(1, &old);
        assert_eq!(of(1), Some(new.clone()));
        forget(1, &new);
        assert_eq!(of(1), None);
    }
}
