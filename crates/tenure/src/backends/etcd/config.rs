//! What an etcd URL says: `etcd://user:password@host:port,host:port/space`, or `etcds://` for
//! encrypted connections.

use super::connection::Login;
use super::layout::Space;
use crate::error::Result;
use crate::support::tls::Tls;
use crate::support::url::Url;

const DEFAULT_PORT: u16 = 2379;

/// The parts of the URL that this backend reads.
pub(super) struct Config {
    pub(super) hosts: Vec<(String, u16)>,
    /// The prefix of the server's keys below which the locks are.
    pub(super) space: Space,
    pub(super) login: Option<Login>,
    pub(super) tls: Option<Tls>,
}

impl Config {
    /// Reads the URL, and refuses options that this backend does not have.
    pub(super) fn from_url(mut url: Url) -> Result<Config> {
        let hosts = url.hosts(DEFAULT_PORT)?;
        let space = Space::from_path(url.path());
        let login = url.login();
        let has_login = login.user.is_some() || login.source.is_some();
        let login = has_login.then(|| Login::new(login));
        let tls = if url.scheme() == "etcds" { Some(Tls::take(&mut url)?) } else { None };
        url.finish()?;
        Ok(Config { hosts, space, login, tls })
    }
}
