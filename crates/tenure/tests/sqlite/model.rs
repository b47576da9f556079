//! Random requests to the store and to `memory`, the model of the rule: both respond alike, and the
//! rows keep their invariants.

use std::time::Duration;

use rusqlite::Connection;
use tenure::backend::{Backend, Claim, Grant, HolderInfo, Mode, Scope};
use tenure::backends::{Memory, Sqlite};
use tenure::{Attempt, FencingToken, Holding};

use crate::{TestContext, claim};

const ACTORS: usize = 9;
const STEPS: u64 = 250;
const KEYS: [&str; 2] = ["a", "b"];
/// What counts rows that must not be there.
const INVARIANTS: [(&str, &str); 3] = [
    (
        "a holder without a marker",
        "SELECT count(*) FROM holder WHERE NOT EXISTS
            (SELECT 1 FROM claim WHERE key = holder.key AND place = 0 AND token = 0)",
    ),
    (
        "a marker that ends before a holder",
        "SELECT count(*) FROM holder, claim WHERE claim.key = holder.key AND place = 0
            AND (claim.expires < holder.expires OR claim.ttl < holder.ttl)",
    ),
    (
        "a marker or a waiter without a holder",
        "SELECT count(*) FROM claim WHERE (place > 0 AND NOT EXISTS
                (SELECT 1 FROM claim AS held WHERE held.key = claim.key AND place = 0))
            OR (token = 0 AND NOT EXISTS (SELECT 1 FROM holder WHERE key = claim.key))",
    ),
];

/// A client of both, that has one claim at most.
#[derive(Default)]
struct Actor {
    claim: Option<Claim>,
    /// Its tokens, by the store and by the model.
    tokens: Option<[FencingToken; 2]>,
}

struct Model {
    stores: [Sqlite; 2],
    memory: Memory,
    raw: Connection,
    actors: Vec<Actor>,
    random: u64,
    /// The highest token of a writer and of all, by key.
    highest: [[u64; 2]; 2],
    log: Vec<String>,
}

#[tokio::test]
async fn the_store_responds_as_the_model_of_the_rule() {
    for seed in 1..=6 {
        let context = TestContext::new();
        let stores = [context.open().await, context.open().await];
        let mut model = Model {
            raw: Connection::open(stores[0].path()).unwrap(),
            stores,
            memory: Memory::new(),
            actors: (0..ACTORS).map(|_| Actor::default()).collect(),
            random: seed,
            highest: [[0; 2]; 2],
            log: Vec::new(),
        };
        model.raw.busy_timeout(crate::SOON).unwrap();
        for _ in 0..STEPS {
            let actor = model.below(ACTORS as u64) as usize;
            model.step(actor).await;
            model.compare().await;
        }
    }
}

impl Model {
    fn below(&mut self, limit: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.random >> 33) % limit
    }

    async fn step(&mut self, actor: usize) {
        let held = self.actors[actor].tokens.is_some();
        match (self.actors[actor].claim.clone(), self.below(8)) {
            (None, _) => {
                let claim = self.new_claim(actor);
                self.actors[actor].claim = Some(claim);
                self.acquire(actor).await;
            }
            (Some(_), 0..3) => self.release(actor).await,
            (Some(claim), 3..5) if held && claim.mode == Mode::Exclusive => {
                self.downgrade(actor).await;
            }
            (Some(_), 5) if held => self.evict(actor).await,
            (Some(_), 6) if held => self.renew(actor).await,
            (Some(mut claim), 7) if !claim.mode.is_lock() && !held => {
                // The numbers of a semaphore that a waiter states may change.
                claim.mode = self.permits();
                self.actors[actor].claim = Some(claim);
                self.acquire(actor).await;
            }
            (Some(_), _) => self.acquire(actor).await,
        }
        // An offer ends after a second, and this machine may be busy.
        for table in ["claim", "holder"] {
            self.raw.execute(&format!("UPDATE {table} SET expires = expires + 60000"), []).unwrap();
        }
        // Before the next request: what a waiter that left has let in, for one.
        self.compare().await;
        for actor in 0..ACTORS {
            if self.actors[actor].claim.is_some() && self.actors[actor].tokens.is_none() {
                self.acquire(actor).await;
            }
        }
    }

    fn permits(&mut self) -> Mode {
        let (take, of) = (self.below(3) as u32 + 1, self.below(2) as u32 + 3);
        Mode::permits(take, of).unwrap()
    }

    fn new_claim(&mut self, actor: usize) -> Claim {
        // Mostly one kind for a key.
        let key = self.below(2) as usize;
        let mut claim = claim(KEYS[key]);
        claim.holder_info = HolderInfo::new(actor.to_string(), "", 1, "");
        claim.waits = self.below(4) > 0;
        // A marker has to outlast them all.
        claim.ttl = Duration::from_secs(60 + self.below(80_000));
        let semaphore = (key == 1) != (self.below(12) == 0);
        claim.mode = match self.below(5) {
            _ if semaphore => self.permits(),
            0..2 => Mode::Exclusive,
            _ => Mode::Shared,
        };
        claim
    }

    fn store(&self, actor: usize) -> &Sqlite {
        &self.stores[actor % 2]
    }

    async fn acquire(&mut self, actor: usize) {
        let claim = self.actors[actor].claim.clone().unwrap();
        self.log.push(format!("{actor} acquires {} {} {}", claim.key, claim.mode, claim.waits));
        let one = self.store(actor).try_acquire(&claim).await;
        let two = self.memory.try_acquire(&claim).await;
        match (one, two) {
            (Ok(Attempt::Granted(one)), Ok(Attempt::Granted(two))) => {
                self.granted(actor, &claim, one, two);
            }
            (Ok(Attempt::Busy(one)), Ok(Attempt::Busy(two))) => {
                assert_eq!((one.ahead, one.holders), (two.ahead, two.holders), "{}", self.shown());
                let names = [one, two].map(|busy| busy.holder.map(|holder| holder.owner));
                assert_eq!(names[0], names[1], "{}", self.shown());
                if !claim.waits {
                    self.actors[actor] = Actor::default();
                }
            }
            (Err(one), Err(two)) => {
                assert_eq!(one.to_string(), two.to_string());
                self.actors[actor] = Actor::default();
            }
            (one, two) => panic!("{one:?} and not {two:?}: {}", self.shown()),
        }
    }

    fn granted(&mut self, actor: usize, claim: &Claim, one: Grant, two: Grant) {
        let tokens = [one.token, two.token];
        if let Some(before) = self.actors[actor].tokens {
            return assert_eq!(before, tokens, "another token for the same grant");
        }
        self.actors[actor].tokens = Some(tokens);
        if !claim.mode.is_lock() {
            return;
        }
        let key = usize::from(claim.key.as_str() == KEYS[1]);
        let [of_writers, of_all] = &mut self.highest[key];
        let writes = claim.mode == Mode::Exclusive;
        let floor = if writes { *of_all } else { *of_writers };
        assert!(one.token.get() > floor, "{one:?} after {floor}");
        let last = one.token.get() + u64::from(one.tokens) - 1;
        *of_all = last.max(*of_all);
        if writes {
            *of_writers = last;
        }
    }

    async fn release(&mut self, actor: usize) {
        let Actor { claim, .. } = std::mem::take(&mut self.actors[actor]);
        let claim = claim.unwrap();
        self.log.push(format!("{actor} releases {}", claim.key));
        let one = self.store(actor).release(&claim).await.unwrap();
        assert_eq!(one, self.memory.release(&claim).await.unwrap(), "{}", self.shown());
    }

    async fn downgrade(&mut self, actor: usize) {
        let [mine, theirs] = self.actors[actor].tokens.unwrap();
        let mut claim = self.actors[actor].claim.clone().unwrap();
        self.log.push(format!("{actor} downgrades {}", claim.key));
        claim.mode = Mode::Shared;
        claim.token = Some(mine);
        let grant = self.store(actor).try_acquire(&claim).await.unwrap().granted().unwrap();
        assert_eq!(grant.token, mine);
        claim.token = Some(theirs);
        self.memory.try_acquire(&claim).await.unwrap().granted().unwrap();
        claim.token = None;
        self.actors[actor].claim = Some(claim);
    }

    async fn evict(&mut self, actor: usize) {
        let Actor { claim, tokens } = std::mem::take(&mut self.actors[actor]);
        let (claim, tokens) = (claim.unwrap(), tokens.unwrap());
        self.log.push(format!("{actor} is evicted from {}", claim.key));
        let [one, two] = tokens;
        assert!(self.stores[1].evict(&claim.key, one).await.unwrap(), "{}", self.shown());
        assert!(self.memory.evict(&claim.key, two).await.unwrap());
        assert!(!self.stores[0].evict(&claim.key, one).await.unwrap());
        let mut late = claim.clone();
        (late.mode, late.token) = (Mode::Shared, Some(one));
        assert!(self.store(actor).try_acquire(&late).await.is_err());
        assert!(!self.store(actor).release(&claim).await.unwrap());
    }

    async fn renew(&mut self, actor: usize) {
        let mut claim = self.actors[actor].claim.clone().unwrap();
        claim.token = self.actors[actor].tokens.map(|[one, _]| one);
        self.log.push(format!("{actor} renews {}", claim.key));
        crate::renew(self.store(actor), &claim).await.unwrap();
        claim.token = claim.token.and_then(|token| FencingToken::new(token.get() + 1));
        assert!(crate::renew(self.store(actor), &claim).await.is_err());
    }

    async fn compare(&self) {
        let all = Scope::Prefix("");
        let [one, two] = [self.stores[0].list(all).await, self.memory.list(all).await];
        assert_eq!(described(one.unwrap()), described(two.unwrap()), "{}", self.shown());
        for (what, sql) in INVARIANTS {
            let broken: i64 = self.raw.query_row(sql, [], |row| row.get(0)).unwrap();
            assert_eq!(broken, 0, "{what}: {}", self.shown());
        }
    }

    fn shown(&self) -> String {
        self.log[self.log.len().saturating_sub(40)..].join("\n")
    }
}

/// Who holds and who waits, in order and with their modes.
fn described(holdings: Vec<Holding>) -> Vec<String> {
    let each = holdings.into_iter().map(|holding| {
        let holders =
            holding.holders.iter().map(|holder| format!("{} {}", holder.owner, holder.mode));
        let waiters =
            holding.waiters.iter().map(|waiter| format!("{} {}", waiter.owner, waiter.mode));
        let (holders, waiters): (Vec<_>, Vec<_>) = (holders.collect(), waiters.collect());
        format!("{}: {holders:?} {waiters:?}", holding.key)
    });
    each.collect()
}
