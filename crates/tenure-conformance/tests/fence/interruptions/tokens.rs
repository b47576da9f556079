//! The tokens of the holders: numbers, or grants of a real lock where the lock itself is the fence.

use anyhow::{Result, ensure};
use tenure::{Client, Config, FencingToken, Guard, Key};

use crate::token;

pub(super) enum Tokens {
    Numbers(u64),
    Grants { locks: Client, key: Key, held: Option<Guard> },
}

impl Tokens {
    /// Rising numbers, as if each were of the next grant.
    pub(super) fn numbers() -> Tokens {
        Tokens::Numbers(7)
    }

    /// The grants of the lock of this name.
    pub(super) async fn grants(url: &str, name: &str) -> Result<Tokens> {
        let locks = url.parse::<Config>()?.connect().await?;
        Ok(Tokens::Grants { locks, key: Key::new(name)?, held: None })
    }

    /// The token of the next holder. The one before has lost its lock then, and does not know it.
    pub(super) async fn next(&mut self) -> Result<FencingToken> {
        match self {
            Tokens::Numbers(number) => {
                *number += 1;
                Ok(token(*number))
            }
            Tokens::Grants { locks, key, held } => {
                if let Some(last) = held.take() {
                    ensure!(locks.lock(&*key).evict(last.token()).await?);
                }
                let guard = locks.lock(&*key).acquire().await?;
                Ok(held.insert(guard).token())
            }
        }
    }
}
