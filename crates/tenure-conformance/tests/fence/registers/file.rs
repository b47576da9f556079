//! In a file.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure::FencingToken;
use tenure::fence::file::admit;

use super::{Answer, Register, answer};

struct File(PathBuf);

pub(super) fn open(folder: &str, name: &str) -> Result<impl Register + use<>> {
    let path = Path::new(folder).join(name);
    if !path.exists() {
        fs::write(&path, "0")?;
    }
    Ok(File(path))
}

impl File {
    fn read(&self, token: Option<FencingToken>) -> Answer<i64> {
        let _admitted = match token.map(|token| answer(admit(&self.0, token))).transpose()? {
            Some(Err(stale)) => return Ok(Err(stale)),
            admitted => admitted,
        };
        Ok(Ok(fs::read_to_string(&self.0)?.parse()?))
    }

    fn write(&self, number: i64, token: Option<FencingToken>) -> Answer<()> {
        let _admitted = match token.map(|token| answer(admit(&self.0, token))).transpose()? {
            Some(Err(stale)) => return Ok(Err(stale)),
            admitted => admitted,
        };
        // Not `Admitted::replace`, which waits for the disk.
        let new = self.0.with_extension(format!("{}.new", std::process::id()));
        fs::write(&new, number.to_string())?;
        fs::rename(&new, &self.0)?;
        Ok(Ok(()))
    }
}

impl Register for File {
    fn read(&mut self, token: Option<FencingToken>) -> BoxFuture<'_, Answer<i64>> {
        std::future::ready(File::read(self, token)).boxed()
    }

    fn write(&mut self, number: i64, token: Option<FencingToken>) -> BoxFuture<'_, Answer<()>> {
        std::future::ready(File::write(self, number, token)).boxed()
    }

    fn spoil(&mut self, fence: Option<&str>) -> BoxFuture<'_, Result<()>> {
        let mut name = self.0.clone().into_os_string();
        name.push(".fence");
        let done = match fence {
            None => fs::remove_file(name),
            Some(text) => fs::write(name, text),
        };
        std::future::ready(done.map_err(Into::into)).boxed()
    }
}
