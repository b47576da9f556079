//! What a `sqlite:` URL says.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::support::url::Url;

/// What the URL says about a store.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The path as it was given, or `None` for the default store of this user.
    pub(super) path: Option<PathBuf>,
    /// `network=allow`: use a file system that is not known to be local as if it were local.
    pub(super) network: bool,
    /// `inherit=yes`: the liveness file stays open across `exec`, so that a child process keeps the
    /// session alive.
    pub(super) inherit: bool,
}

impl Config {
    pub(super) fn from_url(mut url: Url) -> Result<Config> {
        let network = url.take_word("network", &["allow", "refuse"])? == Some("allow");
        let inherit = url.take_word("inherit", &["no", "yes"])? == Some("yes");
        let path = path_of(&url)?;
        url.finish()?;
        Ok(Config { path, network, inherit })
    }
}

fn path_of(url: &Url) -> Result<Option<PathBuf>> {
    let path = url.path();
    match url.authority() {
        Some("") if url.user().is_none() && path.len() > 1 => {}
        Some("") if path.is_empty() || path == "/" => {
            return Err(Error::invalid(
                "`sqlite://` names no file; `sqlite:` is the default store",
            ));
        }
        Some(host) => {
            return Err(Error::invalid(format!(
                "`sqlite://{host}{path}` names a host; write `sqlite:{host}{path}` for a file in \
                 the working directory, `sqlite:///…` for an absolute path"
            )));
        }
        None if path.is_empty() => return Ok(None),
        None => {}
    }
    if path == ":memory:" {
        return Err(Error::invalid(
            "`sqlite::memory:` would exclude no other process; use `memory:`",
        ));
    }
    if path.starts_with('~') {
        return Err(Error::invalid(format!(
            "`~` is not expanded in `sqlite:{path}`; write the path out"
        )));
    }
    if path.contains('\0') {
        return Err(Error::invalid("the path in the sqlite URL has a zero byte in it"));
    }
    if path.ends_with('/') {
        return Err(Error::invalid(format!("`{path}` is a folder; name a file in it")));
    }
    Ok(Some(path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn config(url: &str) -> Result<Config> {
        Config::from_url(Url::parse(url).unwrap())
    }

    #[test]
    fn a_path_is_relative_absolute_or_the_default() {
        let path = |url| config(url).unwrap().path;
        assert_eq!(path("sqlite:"), None);
        assert_eq!(path("sqlite:x.db"), Some("x.db".into()));
        assert_eq!(path("sqlite:./a%20b/x.db"), Some("./a b/x.db".into()));
        assert_eq!(path("sqlite:/abs/x.db"), Some("/abs/x.db".into()));
        assert_eq!(path("sqlite:///abs/x.db"), Some("/abs/x.db".into()));
    }

    #[test]
    fn a_url_that_reads_otherwise_is_refused_with_a_hint() {
        for (url, hint) in [
            ("sqlite://rel.db", "`sqlite:rel.db`"),
            ("sqlite://rel/x.db", "`sqlite:rel/x.db`"),
            ("sqlite://", "`sqlite:`"),
            ("sqlite::memory:", "`memory:`"),
            ("sqlite:~/x.db", "write the path out"),
            ("sqlite:a/", "name a file"),
            ("sqlite:a%00b", "zero byte"),
            ("sqlite:x.db?network=yes", "it can be: allow, refuse"),
            ("sqlite:x.db?ttl=5s", "known: inherit, network"),
        ] {
            let error = config(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(hint), "{url}: {error}");
        }
    }

    #[test]
    fn options_are_off_unless_asked_for() {
        let plain = config("sqlite:x").unwrap();
        assert!(!plain.network && !plain.inherit);
        let both = config("sqlite:x?network=allow&inherit=yes").unwrap();
        assert!(both.network && both.inherit);
    }
}
