//! In a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use async_trait::async_trait;
use tenure::FencingToken;
use tenure::fence::file::{admit, admit_shared};

use super::{FenceResult, Register, split_stale};

struct File(PathBuf);

pub(super) fn open(folder: &str, name: &str) -> Result<impl Register + use<>> {
    let path = Path::new(folder).join(name);
    if !path.exists() {
        fs::write(&path, "0")?;
    }
    Ok(File(path))
}

#[async_trait]
impl Register for File {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
        let _admitted = match token.map(|token| split_stale(admit(&self.0, token))).transpose()? {
            Some(Err(stale)) => return Ok(Err(stale)),
            admitted => admitted,
        };
        Ok(Ok(fs::read_to_string(&self.0)?.parse()?))
    }

    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
        match split_stale(admit_shared(&self.0, token))? {
            Ok(admitted) => Ok(Ok(admitted.read()?.parse()?)),
            Err(stale) => Ok(Err(stale)),
        }
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
        let _admitted = match token.map(|token| split_stale(admit(&self.0, token))).transpose()? {
            Some(Err(stale)) => return Ok(Err(stale)),
            admitted => admitted,
        };
        // Not `Admitted::replace`, which waits for the disk.
        let new = self.0.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, number.to_string())?;
        fs::rename(&new, &self.0)?;
        Ok(Ok(()))
    }

    async fn spoil(&mut self, fence: Option<&str>) -> Result<()> {
        let mut name = self.0.clone().into_os_string();
        name.push(".fence");
        let done = match fence {
            None => fs::remove_file(name),
            Some(text) => fs::write(name, text),
        };
        Ok(done?)
    }
}
