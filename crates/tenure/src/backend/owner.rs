//! The owner id of a claim.

use std::fmt;

use uuid::Uuid;

use crate::error::Result;

/// The owner id of a claim: the client, and the number of the claim within it. Never reused.
///
/// Printed as `<uuid>:<number>`.
///
/// # Examples
///
/// ```
/// use tenure::backend::Owner;
///
/// let owner = Owner::random();
/// assert_eq!(owner.to_string().parse::<Owner>()?, owner);
/// assert_ne!(Owner::random(), owner);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    client: [u8; 16],
    number: u64,
}

impl Owner {
    /// The claim with this number of that client.
    pub fn new(client: [u8; 16], number: u64) -> Owner {
        Owner { client, number }
    }

    /// The first claim of a client with a new random id.
    pub fn random() -> Owner {
        Owner { client: *Uuid::new_v4().as_bytes(), number: 1 }
    }

    /// The id of the client.
    pub fn client(&self) -> [u8; 16] {
        self.client
    }

    /// The number of the claim within its client.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", Uuid::from_bytes(self.client), self.number)
    }
}

impl std::str::FromStr for Owner {
    type Err = crate::Error;
    fn from_str(text: &str) -> Result<Owner> {
        let parse = || {
            let (client, number) = text.split_once(':')?;
            Some(Owner::new(*Uuid::parse_str(client).ok()?.as_bytes(), number.parse().ok()?))
        };
        parse().ok_or_else(|| {
            let message = format!("`{}` is not an owner id", text.escape_debug());
            crate::Error::new(crate::ErrorKind::Invalid, message)
        })
    }
}
