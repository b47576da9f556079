//! The store that a verb works on: its URL, where that comes from, how far it reaches, and which
//! part of it a command may know. A lock in the wrong store excludes no other client and no error
//! shows it, so an unclear URL is refused here, before anything is locked.

use std::path::PathBuf;
use std::time::Duration;

use tenure::{Config, Error};

use crate::args::Reach;
use crate::exit;
use crate::failure::Failure;
use crate::url_file;

/// How long a server may take to respond even if `--wait` is shorter: with `--wait 0s` the verb
/// does not wait for the lock, but it still needs the response.
pub(crate) const MIN_RESPONSE_TIME: Duration = Duration::from_secs(1);

/// The embedded store in the user's state folder, which needs no server.
const DEFAULT_URL: &str = "sqlite:";

/// The scheme of a URL that every verb refuses. An empty or missing URL would mean the default.
const WITHHELD: &str = "withheld";

/// An option whose name contains one of these holds a secret. `%` is among them because the name
/// may be encoded.
const SECRET_WORDS: [&str; 6] = ["password", "passwd", "secret", "token", "credential", "%"];

/// The store that the verbs work on.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) url: String,
    pub(crate) source: Source,
}

/// Where the URL of a store comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// `--url` or `TENURE_URL`.
    Given,
    /// A file of the user or of the system.
    File(PathBuf),
    /// No URL was given.
    Default,
}

impl Source {
    /// Adds the file that contains the URL to a failure: the user who typed the command may not
    /// know the file.
    pub(crate) fn name_in(&self, failure: impl Into<Failure>) -> Failure {
        let mut failure = failure.into();
        if let Source::File(file) = self {
            failure.message = format!("{} (the URL is in `{}`)", failure.message, file.display());
        }
        failure
    }
}

impl Store {
    /// Parses the URL.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        self.url.parse().map_err(|error: Error| self.source.name_in(error))
    }

    /// Finds the store: of `--url` or `TENURE_URL`, of a file, or the embedded one.
    pub(crate) fn find(given: Option<String>, reach: Option<Reach>) -> Result<Store, Failure> {
        // Scripts set an empty TENURE_URL for "none".
        let store = match given.filter(|url| !url.is_empty()) {
            Some(url) => Store { url, source: Source::Given },
            None => match url_file::find()? {
                Some((url, file)) => Store { url, source: Source::File(file) },
                None => Store { url: DEFAULT_URL.to_owned(), source: Source::Default },
            },
        };
        store.refuse_withheld()?;
        store.refuse_short_reach(reach)?;
        Ok(store)
    }

    /// The `TENURE_URL` for a command that calls `tenure` itself: without it, that call would lock
    /// in the embedded store and exclude no other machine. `None` leaves the variable as it is.
    pub(crate) fn url_for_command(&self) -> Option<String> {
        match self.source {
            Source::Default => None,
            _ if has_secret(&self.url) => Some(format!("{WITHHELD}:")),
            _ => Some(absolute(&self.url).unwrap_or_else(|| self.url.clone())),
        }
    }

    fn refuse_withheld(&self) -> Result<(), Failure> {
        if scheme(&self.url) != WITHHELD {
            return Ok(());
        }
        let message = "the outer `tenure run` withheld its URL because of its password";
        Err(Failure::new(exit::USAGE, message, "use password_file= in that URL, or give --url"))
    }

    fn refuse_short_reach(&self, wanted: Option<Reach>) -> Result<(), Failure> {
        let local = matches!(scheme(&self.url).as_str(), "memory" | "sqlite");
        if wanted != Some(Reach::Network) || !local {
            return Ok(());
        }
        let named = match &self.source {
            Source::Default => "no URL is given, and the embedded store".to_owned(),
            Source::File(file) => format!("`{}:` of {}", scheme(&self.url), file.display()),
            Source::Given => format!("`{}:`", scheme(&self.url)),
        };
        let message = format!("{named} reaches one machine only, but the reach has to be network");
        let advice = "name a server with --url, TENURE_URL or /etc/tenure/url";
        Err(Failure::new(exit::USAGE, message, advice))
    }
}

/// The scheme of a URL, in lower case; empty where there is none.
pub(crate) fn scheme(url: &str) -> String {
    url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase()
}

/// The value of an option in a URL, not decoded.
pub(crate) fn option<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    options(url).find(|(known, _)| *known == name).map(|(_, value)| value)
}

/// The value of an option that is a duration. Whether it is valid is checked when the URL is
/// parsed.
pub(crate) fn duration_option(url: &str, name: &str) -> Option<Duration> {
    option(url, name).and_then(|text| tenure::duration(text).ok())
}

/// How long to retry an unreachable server under `--wait`: the option `outage`, but not longer than
/// the wait limit.
pub(crate) fn outage_within(limit: Duration, outage: Option<Duration>) -> Duration {
    outage.map_or(limit, |outage| outage.min(limit))
}

fn options(url: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Whether a URL contains a secret: a password before its host, or one among its options. The name
/// of a file that contains the secret is none.
pub(crate) fn has_secret(url: &str) -> bool {
    let authority =
        without_query(url).split_once("://").and_then(|(_, rest)| rest.split('/').next());
    let login = authority.and_then(|authority| authority.rsplit_once('@')).map(|(login, _)| login);
    let in_login = login.is_some_and(|login| match login.split_once(':') {
        Some((_, password)) if !password.is_empty() => true,
        // Consul's token stands where others have the user.
        _ => scheme(url).starts_with("consul") && option(url, "password_file").is_none(),
    });
    in_login || options(url).any(|(name, value)| !value.is_empty() && is_secret(name))
}

/// Whether an option of this name contains a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    !name.ends_with("_file") && SECRET_WORDS.iter().any(|word| name.contains(word))
}

/// Whether a URL names a file relative to the current folder.
pub(crate) fn is_relative(url: &str) -> bool {
    let path = without_query(url).split_once(':').map_or("", |(_, path)| path);
    scheme(url) == "sqlite" && !path.is_empty() && !path.starts_with('/')
}

fn without_query(url: &str) -> &str {
    url.split_once('?').map_or(url, |(before, _)| before)
}

/// A relative URL made absolute, for a command that changes its folder. `None` if it is absolute
/// already, or if the folder is not UTF-8.
fn absolute(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once(':').filter(|_| is_relative(url))?;
    let folder = std::env::current_dir().ok()?;
    let folder = folder.to_str()?.trim_end_matches('/').replace('%', "%25").replace('?', "%3F");
    Some(format!("{scheme}:{folder}/{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_login_and_options() {
        for url in [
            "redis://u:p@h",
            "redis://:p@h?x=1",
            "redis://u:p@h1,h2/0",
            "redis+sentinel://h/main?sentinel_password=x",
            "redis+sentinel://h/main?sentinel%5Fpassword=x",
            "consul://9b1deb4d@h",
            "consuls://9b1deb4d@h?dc=a",
        ] {
            assert!(has_secret(url), "{url}");
        }
        for url in [
            "sqlite:",
            "sqlite:///a:b@c",
            "redis://h/a:b@c",
            "redis://h?owner=a:b@c",
            "redis://u@h/0",
            "redis://u:@h/0",
            "postgres://postgres@h/db?password_file=/run/secrets/lock",
            "consul://me@h?password_file=/run/secrets/lock",
            "memory:",
        ] {
            assert!(!has_secret(url), "{url}");
        }
    }

    #[test]
    fn only_a_path_without_a_root_is_relative() {
        for url in ["sqlite:locks.db", "SQLite:a/b?ttl=1s", "sqlite:./a"] {
            assert!(is_relative(url), "{url}");
            let whole = absolute(url).unwrap();
            assert!(!is_relative(&whole) && whole.ends_with(&url[7..]), "{whole}");
        }
        for url in ["sqlite:", "sqlite:?ttl=1s", "sqlite:/a", "sqlite:///a", "redis://h", "x"] {
            assert!(!is_relative(url) && absolute(url).is_none(), "{url}");
        }
    }
}
