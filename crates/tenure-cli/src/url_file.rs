//! The file that names the URL where neither `--url` nor `TENURE_URL` does, as in cron: the user's
//! file, then the system's. The file decides where a lock is taken, so a file that other users may
//! write is refused with an error, and never skipped.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::exit;
use crate::failure::Failure;
use crate::store::{has_secret, is_relative};

/// The file of the system.
const SYSTEM_FILE: &str = "/etc/tenure/url";
/// The largest file that is read, far more than a URL needs.
const LIMIT: u64 = 64 * 1024;
const STICKY: u32 = 0o1000;
const WRITTEN_BY_OTHERS: u32 = 0o022;
const READ_BY_ALL: u32 = 0o004;

/// Finds the first file that exists. Returns its URL and its path.
pub(crate) fn find() -> Result<Option<(String, PathBuf)>, Failure> {
    for file in user_file().into_iter().chain([PathBuf::from(SYSTEM_FILE)]) {
        if let Some(url) = read(&file)? {
            return Ok(Some((url, file)));
        }
    }
    Ok(None)
}

/// `${XDG_CONFIG_HOME:-~/.config}/tenure/url`.
fn user_file() -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(absolute);
    let home = || std::env::home_dir().filter(absolute).map(|home| home.join(".config"));
    Some(config.or_else(home)?.join("tenure/url"))
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    // Opening a pipe must not block.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    let facts = file.metadata().map_err(|error| unreadable(path, &error))?;
    refuse_unsafe(path, &facts)?;
    let mut text = String::new();
    file.take(LIMIT).read_to_string(&mut text).map_err(|error| unreadable(path, &error))?;
    let url = only_line(path, &text)?;
    if is_relative(url) {
        let message = format!("`{}` names a file without its folder", path.display());
        return Err(refused(message, "write the whole path, as in sqlite:/srv/locks.db"));
    }
    if has_secret(url) && facts.mode() & READ_BY_ALL != 0 {
        let message = format!("`{}` holds a password, and all users may read it", path.display());
        return Err(refused(message, "chmod o-r that file, or use password_file= in the URL"));
    }
    Ok(Some(url.to_owned()))
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// A user who may write the file decides where this program locks; a user who may write its folder
/// can replace the file.
fn refuse_unsafe(path: &Path, facts: &Metadata) -> Result<(), Failure> {
    if !facts.is_file() {
        let message = format!("`{}` is not a regular file", path.display());
        return Err(refused(message, "put the URL into a plain file, or give --url"));
    }
    refuse_foreign(path, facts)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let facts = folder.metadata().map_err(|error| unreadable(folder, &error))?;
    // In a folder with the sticky bit, users can only replace their own files.
    if facts.mode() & STICKY != 0 { Ok(()) } else { refuse_foreign(folder, &facts) }
}

fn refuse_foreign(path: &Path, facts: &Metadata) -> Result<(), Failure> {
    let shown = path.display();
    let owner = facts.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        let message = format!("`{shown}` belongs to user {owner}, who may change the URL");
        return Err(refused(message, "let it belong to root or to you, or give --url"));
    }
    if facts.mode() & WRITTEN_BY_OTHERS != 0 {
        let message = format!("`{shown}` may be written by others, who may change the URL");
        return Err(refused(message, "chmod go-w it, or give --url"));
    }
    Ok(())
}

/// The only line that is neither empty nor a comment.
fn only_line<'a>(path: &Path, text: &'a str) -> Result<&'a str, Failure> {
    let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
    match (lines.next(), lines.next()) {
        (Some(url), None) => Ok(url),
        (found, _) => {
            let what = if found.is_some() { "more than one URL" } else { "no URL" };
            let message = format!("`{}` contains {what}", path.display());
            Err(refused(message, "write one URL into it, in a line of its own, or remove it"))
        }
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("cannot read `{}`, which may name the URL: {error}", path.display());
    let code = if error.kind() == ErrorKind::PermissionDenied { exit::DENIED } else { exit::USAGE };
    Failure::new(code, message, "correct that file, or give --url or TENURE_URL")
}

fn refused(message: String, advice: &'static str) -> Failure {
    Failure::new(exit::USAGE, message, advice)
}
