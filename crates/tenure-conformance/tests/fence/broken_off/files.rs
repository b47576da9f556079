//! Holders of a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use tenure::FencingToken;
use tenure::fence::file::{Admitted, admit};

use super::grounds::Way;
use super::play::{Ground, Holder, Outcome, Steps};
use crate::registers::answer;

#[derive(Clone)]
pub(super) struct Folder {
    path: PathBuf,
    way: Way,
}

impl Folder {
    pub(super) fn new(url: &str, name: &str, way: Way) -> Result<Folder> {
        let path = Path::new(url.trim_start_matches("file://")).join(name);
        fs::write(&path, "0")?;
        Ok(Folder { path, way })
    }

    /// None if refused.
    fn admit(&self, token: FencingToken) -> Result<Option<Admitted>> {
        Ok(answer(admit(&self.path, token))?.ok())
    }
}

impl Ground for Folder {
    fn open(&self) -> LocalBoxFuture<'_, Result<Box<dyn Holder>>> {
        let holder = self.clone();
        async move { Ok(Box::new(holder) as Box<dyn Holder>) }.boxed_local()
    }
}

impl Holder for Folder {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            steps.rest().await;
            let number: i64 = if self.way == Way::FirstContact {
                let Some(admitted) = self.admit(token)? else { return Ok(Outcome::Refused) };
                steps.breaks().await;
                admitted.read()?.parse()?
            } else {
                fs::read_to_string(&self.path)?.parse()?
            };
            loop {
                steps.rest().await;
                let Some(admitted) = self.admit(token)? else { return Ok(Outcome::Refused) };
                // Dropped without a write, it is to be had again.
                if steps.breaks().await {
                    continue;
                }
                admitted.replace((number + by).to_string())?;
                return Ok(Outcome::Wrote);
            }
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        async move { Ok(admit(&self.path, token)?.read()?.parse()?) }.boxed_local()
    }
}
