//! A row of `mode=lease` beside the model: `memory`, which is the rule of modes as code.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::backend::{Backend, Claim, Grant, HolderInfo, Mode, Owner, Scope};
use tenure::backends::{Memory, Postgres};
use tenure::{Attempt, FencingToken, Holding, Key};
use tenure_conformance::context::soon;

use crate::{cases, server, unique};

cases! {
    random_requests_have_the_outcome_of_the_model,
}

/// A random number below a limit.
pub(crate) fn below(state: &mut u64, limit: u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % limit
}

/// How a case with random requests began, so that a failure can be played again.
pub(crate) fn seed() -> u64 {
    std::env::var("TENURE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |since| since.as_nanos() as u64)
    })
}

/// One request of a claim.
#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire,
    Downgrade,
    Release { unconfirmed: bool },
    Evict,
}

/// Random requests go to `memory`, which is the rule as code, and to a row that
/// two clients change by both kinds of statements. Every response and every listing is the same.
async fn random_requests_have_the_outcome_of_the_model() -> Result<()> {
    let seed = seed();
    let mut state = seed;
    let (one, two) =
        (Postgres::open(&server()?.url()).await?, Postgres::open(&server()?.url()).await?);
    for round in 0..40 {
        let key = unique("k");
        let mut play = Play::new(&key, round % 3 == 0, &mut state)?;
        for number in 0..60 {
            let backend = if below(&mut state, 2) == 0 { &one } else { &two };
            let played = play.step(backend, &mut state).await;
            if let Err(error) = played {
                bail!("TENURE_SEED={seed}, round {round}, request {number}: {error:#}");
            }
        }
    }
    Ok(())
}

struct Play {
    model: Memory,
    claims: Vec<Claim>,
    /// The token of each claim's last grant, at the model and at the server.
    tokens: HashMap<Owner, (FencingToken, FencingToken)>,
}

impl Play {
    /// Mostly exclusive claims in some rounds, so that rows change their form often.
    fn new(key: &str, semaphore: bool, state: &mut u64) -> Result<Play> {
        let key = Key::new(key)?;
        let claims = (0..7).map(|_| fresh_claim(&key, semaphore, state)).collect::<Result<_>>()?;
        Ok(Play { model: Memory::new(), claims, tokens: HashMap::new() })
    }

    async fn step(&mut self, backend: &Postgres, state: &mut u64) -> Result<()> {
        let index = below(state, self.claims.len() as u64) as usize;
        let step = match below(state, 12) {
            0..6 => Step::Acquire,
            6 => Step::Downgrade,
            7 => Step::Evict,
            rest => Step::Release { unconfirmed: rest == 8 },
        };
        self.execute(backend, index, step, state)
            .await
            .with_context(|| format!("{step:?} of claim {index}, {}", self.claims[index].mode))?;
        self.compare(backend).await.with_context(|| format!("after {step:?} of claim {index}"))
    }

    async fn execute(
        &mut self,
        backend: &Postgres,
        index: usize,
        step: Step,
        state: &mut u64,
    ) -> Result<()> {
        let mut claim = self.claims[index].clone();
        match step {
            Step::Acquire => {
                let expected = self.model.try_acquire(&claim).await;
                let found = soon("acquire", backend.try_acquire(&claim)).await?;
                self.same_attempt(&claim, expected, found)?;
            }
            Step::Downgrade => {
                let Some((model, server)) = self.tokens.get(&claim.owner).copied() else {
                    return Ok(());
                };
                if !claim.mode.is_lock() {
                    return Ok(());
                }
                (claim.mode, claim.token, claim.waits) = (Mode::Shared, Some(model), false);
                let expected = self.model.try_acquire(&claim).await;
                claim.token = Some(server);
                let found = soon("downgrade", backend.try_acquire(&claim)).await?;
                claim.token = None;
                self.same_attempt(&claim, expected, found)?;
            }
            Step::Release { unconfirmed } => {
                claim.unconfirmed = unconfirmed;
                let expected = self.model.release(&claim).await?;
                let found = soon("release", backend.release(&claim)).await??;
                ensure!(expected == found || unconfirmed, "{found}, expected {expected}");
                // A released claim sends no other request.
                let semaphore = !claim.mode.is_lock();
                self.claims[index] = fresh_claim(&claim.key, semaphore, state)?;
            }
            Step::Evict => {
                let Some((model, server)) = self.tokens.get(&claim.owner).copied() else {
                    return Ok(());
                };
                let expected = self.model.evict(&claim.key, model).await?;
                let found = soon("evict", backend.evict(&claim.key, server)).await??;
                ensure!(expected == found, "{found}, expected {expected}");
            }
        }
        Ok(())
    }

    fn same_attempt(
        &mut self,
        claim: &Claim,
        expected: tenure::Result<Attempt<Grant>>,
        found: tenure::Result<Attempt<Grant>>,
    ) -> Result<()> {
        match (expected, found) {
            (Ok(Attempt::Granted(expected)), Ok(Attempt::Granted(found))) => {
                let tokens = (expected.token, found.token);
                let known = self.tokens.insert(claim.owner, tokens);
                let same =
                    |known: (_, _)| known == tokens || known.0 < tokens.0 && known.1 < tokens.1;
                ensure!(known.is_none_or(same), "{known:?}, now {tokens:?}");
            }
            (Ok(Attempt::Busy(expected)), Ok(Attempt::Busy(found))) => {
                ensure!(expected.holders == found.holders, "{found:?}, expected {expected:?}");
                ensure!(expected.ahead == found.ahead, "{found:?}, expected {expected:?}");
                let name = |busy: &tenure::Busy| busy.holder.as_ref().map(|one| one.owner.clone());
                ensure!(name(&expected) == name(&found), "{found:?}, expected {expected:?}");
            }
            (Err(expected), Err(found)) => {
                ensure!(expected.kind() == found.kind(), "{found}, expected {expected}");
            }
            (expected, found) => bail!("{found:?}, expected {expected:?}"),
        }
        Ok(())
    }

    /// Compares holders and waiters, and learns the tokens of claims that were handed the key.
    async fn compare(&mut self, backend: &Postgres) -> Result<()> {
        let key = self.claims[0].key.clone();
        let expected = self.model.list(Scope::Key(&key)).await?;
        let found = soon("list", backend.list(Scope::Key(&key))).await??;
        ensure!(shown(&expected) == shown(&found), "{found:#?}, expected {expected:#?}");
        let holders = expected.iter().flat_map(|one| &one.holders);
        let mut last = (0, 0);
        let mut all: Vec<_> = holders.zip(found.iter().flat_map(|one| &one.holders)).collect();
        all.sort_by_key(|(expected, _)| expected.token);
        for (expected, found) in all {
            let tokens = (expected.token.context("a token")?, found.token.context("a token")?);
            ensure!(
                tokens.0.get() > last.0 && tokens.1.get() > last.1,
                "{tokens:?} after {last:?}"
            );
            last = (tokens.0.get(), tokens.1.get());
            let owner = self.claims.iter().find(|one| one.holder_info.name() == expected.owner);
            self.tokens.insert(owner.context("a known claim")?.owner, tokens);
        }
        Ok(())
    }
}

fn fresh_claim(key: &Key, semaphore: bool, state: &mut u64) -> Result<Claim> {
    let mut claim = Claim::new(key.clone(), Owner::random(), Duration::from_secs(600));
    claim.mode = match below(state, 2) {
        _ if semaphore => {
            let of = 1 + below(state, 4) as u32;
            Mode::permits(1 + below(state, of.into()) as u32, of)?
        }
        0 => Mode::Exclusive,
        _ => Mode::Shared,
    };
    claim.waits = below(state, 4) > 0;
    claim.holder_info = HolderInfo::new(claim.owner.to_string(), "", 0, "");
    Ok(claim)
}

/// What two listings have to share: who holds and who waits, in which order and mode.
fn shown(holdings: &[Holding]) -> Vec<(String, String, bool)> {
    let holders = holdings.iter().flat_map(|holding| &holding.holders);
    let holders = holders.map(|one| (one.owner.clone(), one.mode.to_string(), true));
    let waiters = holdings.iter().flat_map(|holding| &holding.waiters);
    let waiters = waiters.map(|one| (one.owner.clone(), one.mode.to_string(), false));
    holders.chain(waiters).collect()
}
