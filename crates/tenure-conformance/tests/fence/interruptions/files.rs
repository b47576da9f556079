//! Holders of a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use async_trait::async_trait;
use tenure::FencingToken;
use tenure::fence::file::{Admitted, admit};

use super::schedule::{Holder, Outcome, SharedResource, Steps};
use super::stores::Procedure;
use crate::registers::split_stale;

#[derive(Clone)]
pub(super) struct FencedFile {
    path: PathBuf,
    procedure: Procedure,
}

impl FencedFile {
    pub(super) fn new(url: &str, name: &str, procedure: Procedure) -> Result<FencedFile> {
        let path = Path::new(url.trim_start_matches("file://")).join(name);
        fs::write(&path, "0")?;
        Ok(FencedFile { path, procedure })
    }

    /// `None` if refused.
    fn admit(&self, token: FencingToken) -> Result<Option<Admitted>> {
        Ok(split_stale(admit(&self.path, token))?.ok())
    }
}

#[async_trait(?Send)]
impl SharedResource for FencedFile {
    async fn holder(&self) -> Result<Box<dyn Holder>> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait(?Send)]
impl Holder for FencedFile {
    async fn add(&mut self, token: FencingToken, by: i64, steps: &Steps) -> Result<Outcome> {
        steps.idle().await;
        let number: i64 = if self.procedure == Procedure::FirstContact {
            let Some(admitted) = self.admit(token)? else { return Ok(Outcome::Refused) };
            steps.is_rolled_back().await;
            admitted.read()?.parse()?
        } else {
            fs::read_to_string(&self.path)?.parse()?
        };
        loop {
            steps.idle().await;
            let Some(admitted) = self.admit(token)? else { return Ok(Outcome::Refused) };
            // Dropped without a write, the file can be admitted to again.
            if steps.is_rolled_back().await {
                continue;
            }
            admitted.replace((number + by).to_string())?;
            return Ok(Outcome::Wrote);
        }
    }

    async fn settle(&mut self, token: FencingToken) -> Result<i64> {
        Ok(admit(&self.path, token)?.read()?.parse()?)
    }
}
