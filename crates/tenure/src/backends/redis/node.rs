//! One of the independent masters of a Redlock: the plain layout, where nobody is next, and two
//! questions that only Redlock asks.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Value;

use super::answer::{self, Shown};
use super::names::Names;
use super::script::Argument;
use super::settings::{self, Address, Layout, Limits, Login, Place, Settings, Turn};
use super::{Redis, ms};
use crate::backend::{Claim, Scope};
use crate::error::Result;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;

/// The nodes that a URL names.
pub(in crate::backends) fn nodes(options: &mut Options) -> Result<Vec<Redis>> {
    let path = options.path().trim_matches('/').to_owned();
    let database = if path.is_empty() { 0 } else { settings::number("db", &path)? };
    let login = Login {
        user: options.user().map(str::to_owned),
        password: options.password().map(str::to_owned),
        database,
    };
    let limits = Limits { response: settings::RESPONSE, connect: settings::connect(options)? };
    let (memory, tls) = (settings::memory(options)?, settings::tls(options, false)?);
    let node = |address: Address| {
        let settings = Settings {
            place: Place::One(address),
            login: login.clone(),
            layout: Layout::Plain,
            order: Turn::Barging,
            replicas: 0,
            memory,
            limits,
            tls: tls.clone(),
        };
        Redis::new(settings, true)
    };
    Ok(settings::addresses(options)?.into_iter().map(node).collect())
}

impl Redis {
    /// Connects and logs in, if that is still to be done.
    pub(in crate::backends) async fn reach(&self) -> Result<()> {
        self.greet().await
    }

    /// Whether the server that this connection goes to has run for so long. A restart breaks the
    /// connection, so the question is new with each.
    pub(in crate::backends) async fn has_run_for(&self, longest: Duration) -> Result<bool> {
        let uptime = self.servers.wire("").await?.uptime;
        Ok(uptime.is_some_and(|uptime| uptime.was + uptime.at.elapsed() >= longest))
    }

    /// Makes later grants on this node have higher tokens than this one. `false` if the claim does
    /// not hold here.
    pub(in crate::backends) async fn raise(
        &self,
        claim: &Claim,
        token: FencingToken,
    ) -> Result<bool> {
        let (names, owner) = (Names::of(claim.key.as_str()), claim.owner.to_string());
        let token = token.to_string();
        let memory = self.settings.memory.max(claim.ttl.saturating_mul(2));
        let arguments =
            [Argument::Text(&owner), Argument::Text(&token), Argument::Number(ms(memory))];
        let call = self.scripts.raise.call(&[&names.lock, &names.state], &arguments);
        match self.servers.ask(&names.lock, &call).await? {
            Value::Int(raised) => Ok(raised == 1),
            other => Err(answer::odd("raise", &other)),
        }
    }

    /// Who holds and who waits on this node.
    pub(in crate::backends) async fn seen(&self, scope: Scope<'_>) -> Result<BTreeMap<Key, Shown>> {
        self.shown(scope).await
    }
}
