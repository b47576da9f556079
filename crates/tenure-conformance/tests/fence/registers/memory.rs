//! In this process.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use anyhow::{Result, bail};
use async_trait::async_trait;
use tenure::FencingToken;
use tenure::fence::Fences;

use super::{FenceResult, Register, split_stale};

static FENCES: LazyLock<Fences> = LazyLock::new(|| Fences::new(10_000));
static NUMBERS: LazyLock<Mutex<HashMap<String, i64>>> = LazyLock::new(Mutex::default);

struct Memory(String);

pub(super) fn open(name: &str) -> impl Register + use<> {
    Memory(name.to_owned())
}

impl Memory {
    fn number(&self) -> i64 {
        let numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.get(&self.0).copied().unwrap_or(0)
    }
}

#[async_trait]
impl Register for Memory {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
        let Some(token) = token else { return Ok(Ok(self.number())) };
        Ok(split_stale(FENCES.admit(&self.0, token))?.map(|_turn| self.number()))
    }

    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
        Ok(split_stale(FENCES.admit_shared(&self.0, token))?.map(|_turn| self.number()))
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
        let turn = token.map(|token| split_stale(FENCES.admit(&self.0, token))).transpose()?;
        if let Some(Err(stale)) = turn {
            return Ok(Err(stale));
        }
        let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.insert(self.0.clone(), number);
        Ok(Ok(()))
    }

    async fn spoil(&mut self, _: Option<&str>) -> Result<()> {
        bail!("its fence is in memory")
    }
}
