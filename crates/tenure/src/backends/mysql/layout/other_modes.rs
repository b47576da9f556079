//! The statements for keys that are held or waited for in other modes than the exclusive one. Only
//! `mode=lease` has them.
//!
//! **State.** An exclusive holder stands in the row of its key, as always. Holders in another mode
//! have a row each in `tenure_holder`, with token, weight, limit and an end of their own; while
//! there are any, the row of the key has `~shared` or `~permits` as its owner, the latest of their
//! ends as its end, and a token that is not below theirs. A queue entry in another mode says so in
//! its column `home`, which means nothing else in `mode=lease`: `~shared 1 2147483647`, or
//! `~permits`, how many, and the limit. So no existing table changes, and a client that knows of
//! exclusive locks only sees a key that is held.
//!
//! **Invariant.** The rows of `tenure_holder` count only while the row of the key has such an
//! owner and its end has not passed; no holder ends later than the row. So whatever frees the row
//! for an exclusive claim (its end, or an eviction by a client that knows no other modes) ends
//! all of them. Every packet here that finds rows which do not count deletes them before it
//! grants anything.
//!
//! **Who may change it.** A packet that has locked the row of the key. It then drops what has
//! ended, does what it was sent for, and grants the first entries for as long as they fit
//! ([`OtherModes::grant_what_fits`]): there is no other place where another mode is granted. The
//! moment that all of its statements share is read after the row was locked.
//!
//! **Locks.** Floor, row of the key, queue entries, holders, in this order. Queue entries and
//! holders are read by `SELECT … INTO` or `INSERT … SELECT`, which lock nothing; `SET` and an
//! UPDATE of two tables would lock them shared, and a sweep that waits for one of them would then
//! be in the way of deleting it.
//!
//! **Tokens.** A packet that grants draws one range of tokens: an exclusive grant has all of it,
//! the holders of a run have the first ones, each its own. The row keeps the highest that was
//! granted, so that a client that counts up by one also gets a higher one.
//!
//! **Clients that know exclusive locks only** may hand the key off to an entry in another mode.
//! They copy its `home` into the row, and the holder is alone; the next packet here finds that
//! and makes it a holder among others ([`OtherModes::adopt`]). A downgrade is the same step, on
//! purpose.

use super::literals::{Literals, hex, micros};
use super::outcome::{ModeOutcome, WokenClient};
use super::statements::{OTHER_MODE, PACKET_TIME, Requester, Statements, in_other_mode, range_has};
use crate::backend::{Claim, Mode};
use crate::key::Key;
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// The start of a packet: the moment that its statements share.
const READ_TIME: &str = "SET @tenure_at=UTC_TIMESTAMP(6);";

/// What the holders weigh.
const USED: &str = "@tenure_used";
/// The first token of the range that the packet may draw.
pub(super) const BASE: &str = "@tenure_base";
/// What the key is in use as: `lock`, `permits`, or NULL.
pub(super) const KIND: &str = "@tenure_kind";
/// How many rows the key has in `tenure_holder`.
pub(super) const HOLDERS: &str = "@tenure_holders";

/// The weight of an exclusive claim, and the limit of every claim to a lock.
pub(super) fn whole() -> u32 {
    Mode::Exclusive.limit()
}

/// Two words that say what a key is in use as.
fn kind(mode: Mode) -> &'static str {
    if mode.is_lock() { "lock" } else { "permits" }
}

/// What the column `home` of a queue entry in this mode says, as an expression.
fn home(mode: Mode, connection_id: &str) -> String {
    match mode {
        Mode::Exclusive => connection_id.to_owned(),
        Mode::Shared | Mode::Permits { .. } => {
            format!("'{OTHER_MODE}{} {} {}'", mode.name(), mode.weight(), mode.limit())
        }
    }
}

/// Weight and limit in a column `home`, as expressions.
pub(super) fn weight_and_limit(home: &str) -> (String, String) {
    let is_other = in_other_mode(home);
    let whole = whole();
    let part = |part: &str| format!("IF({is_other},CAST({part} AS UNSIGNED),{whole})");
    let weight = part(&format!("SUBSTRING_INDEX(SUBSTRING_INDEX({home},' ',2),' ',-1)"));
    (weight, part(&format!("SUBSTRING_INDEX({home},' ',-1)")))
}

/// The packets of other modes, made of these statements.
pub(crate) struct OtherModes<'a>(pub(crate) &'a Statements);

/// The end of a lease or queue entry that begins with this packet.
fn until(claim: &Claim) -> String {
    format!("{PACKET_TIME}+INTERVAL {} MICROSECOND", micros(claim.ttl))
}

impl OtherModes<'_> {
    /// Acquires the key in whichever mode, or adds or refreshes a queue entry. A claim that does
    /// not wait has its entry only for the length of the packet. Result sets: whom to wake, and the
    /// [`ModeOutcome`].
    pub(crate) fn acquire(&self, claim: &Claim, by: &Requester<'_>) -> String {
        let Requester { wake_id, connection_id } = by;
        let Statements { lease, waiter, .. } = self.0;
        let Literals { key, owner, note, .. } = Literals::of(claim);
        let until = until(claim);
        let home = home(claim.mode, connection_id);
        let own_kind = kind(claim.mode);
        // A new row has an end long ago, so that it is free.
        let lock = format!(
            "START TRANSACTION;\
             INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
             SELECT {key},'',n,'1970-01-02','1970-01-02','','','' FROM tenure_floor WHERE id=1 \
             LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE queued=queued+1;"
        );
        let enter = format!(
            "UPDATE tenure_holder SET until=GREATEST(until,{until}) \
             WHERE k={key} AND owner={owner};\
             UPDATE {lease} SET until=GREATEST(until,{until}) WHERE k={key} AND owner={owner};\
             INSERT INTO {waiter} (k,owner,until,since,note,home,bell) \
             SELECT k,{owner},{until},{PACKET_TIME},{note},{home},'{wake_id}' FROM {lease} l \
             WHERE k={key} AND owner<>{owner} AND COALESCE({KIND},'{own_kind}')='{own_kind}' \
             AND NOT EXISTS (SELECT 1 FROM tenure_holder h WHERE h.k={key} AND h.owner={owner}) \
             ON DUPLICATE KEY UPDATE until=GREATEST({waiter}.until,VALUES(until)),\
             home=VALUES(home),bell=VALUES(bell);"
        );
        // An entry that a waiting request of the same claim has left stays.
        let leave = if claim.waits {
            String::new()
        } else {
            format!("DELETE FROM {waiter} WHERE k={key} AND owner={owner} AND since={PACKET_TIME};")
        };
        let (drop_ended, adopt) = (self.drop_ended(&key), self.adopt(&key));
        let (kind, grant) = (self.read_kind(&key), self.grant_what_fits(&key));
        let (settle, outcome) = (self.settle(&key), ModeOutcome::select(self.0, &key, &owner));
        format!("{lock}{drop_ended}{adopt}{kind}{enter}{grant}{leave}{settle}{outcome};COMMIT")
    }

    /// Makes the exclusive grant with this token shared, or extends it if it is shared already. If
    /// it is not there, nothing of the claim is. Result sets as of
    /// [`acquire`](OtherModes::acquire).
    pub(crate) fn downgrade(&self, claim: &Claim, token: FencingToken) -> String {
        let lease = self.0.lease;
        let Literals { key, owner, .. } = Literals::of(claim);
        let until = until(claim);
        let token = token.get();
        let shared = home(Mode::Shared, "");
        let change = format!(
            "UPDATE {lease} SET home={shared},until=GREATEST(until,{until}) \
             WHERE k={key} AND owner={owner} AND token={token};\
             UPDATE tenure_holder SET until=GREATEST(until,{until}) \
             WHERE k={key} AND owner={owner} AND token={token};"
        );
        let (lock, drop_ended) = (self.lock(&key), self.drop_ended(&key));
        let (adopt, kind) = (self.adopt(&key), self.read_kind(&key));
        let (grant, settle) = (self.grant_what_fits(&key), self.settle(&key));
        let outcome = ModeOutcome::select(self.0, &key, &owner);
        format!("{lock}{drop_ended}{change}{adopt}{kind}{grant}{settle}{outcome};COMMIT")
    }

    /// Releases or cancels a claim in whichever mode, then hands off. Result sets: `was_held`, and
    /// whom to wake.
    pub(crate) fn release(&self, claim: &Claim) -> String {
        let Statements { lease, waiter, .. } = self.0;
        let Literals { key, owner, .. } = Literals::of(claim);
        let end = format!(
            "SELECT EXISTS (SELECT 1 FROM tenure_holder WHERE k={key} AND owner={owner}) \
             OR EXISTS (SELECT 1 FROM {lease} WHERE k={key} AND owner={owner}) AS was_held;\
             UPDATE {lease} SET owner='',until={PACKET_TIME} WHERE k={key} AND owner={owner};\
             DELETE FROM {waiter} WHERE k={key} AND owner={owner};\
             DELETE FROM tenure_holder WHERE k={key} AND owner={owner};"
        );
        self.end_and_hand_off(&key, &end)
    }

    /// Ends exactly the grant whose range has this token, then hands off. Result sets: the owner of
    /// that grant, and whom to wake.
    pub(crate) fn evict(&self, key: &Key, token: FencingToken) -> String {
        let lease = self.0.lease;
        let key = hex(key.as_str());
        let exclusive = format!(
            "k={key} AND owner<>'' AND NOT {other} AND {range}",
            other = in_other_mode("owner"),
            range = range_has(token)
        );
        let token = token.get();
        let holder = format!("k={key} AND token<={token} AND {token}<token+tokens");
        let end = format!(
            "SELECT owner FROM {lease} WHERE {exclusive} \
             UNION ALL SELECT owner FROM tenure_holder WHERE {holder};\
             UPDATE {lease} SET owner='',until={PACKET_TIME} WHERE {exclusive};\
             DELETE FROM tenure_holder WHERE {holder};"
        );
        self.end_and_hand_off(&key, &end)
    }

    /// A packet around the statements that end a claim.
    fn end_and_hand_off(&self, key: &str, end: &str) -> String {
        let (lock, drop_ended, adopt) = (self.lock(key), self.drop_ended(key), self.adopt(key));
        let (grant, settle) = (self.grant_what_fits(key), self.settle(key));
        let woken = WokenClient::select(self.0, key, "''");
        format!("{lock}{drop_ended}{adopt}{end}{grant}{settle}{woken};COMMIT")
    }

    /// Begins a transaction and locks the row of the key, if there is one.
    fn lock(&self, key: &str) -> String {
        let lease = self.0.lease;
        format!("START TRANSACTION;UPDATE {lease} SET queued=queued+1 WHERE k={key};")
    }

    /// Drops what has ended: queue entries, holders, and the owner in the row.
    fn drop_ended(&self, key: &str) -> String {
        let Statements { lease, waiter, .. } = self.0;
        let ended = format!("until<={PACKET_TIME}");
        let is_other = in_other_mode("owner");
        format!(
            "{READ_TIME}DELETE FROM {waiter} WHERE k={key} AND {ended};\
             DELETE FROM tenure_holder WHERE k={key} AND ({ended} OR NOT EXISTS \
             (SELECT 1 FROM {lease} l WHERE l.k={key} AND l.{is_other} \
             AND l.until>{PACKET_TIME}));\
             UPDATE {lease} SET owner='' WHERE k={key} AND owner<>'' AND ({ended} \
             OR ({is_other} AND NOT EXISTS (SELECT 1 FROM tenure_holder h WHERE h.k={key})));"
        )
    }

    /// Makes the holder in the row one among others, if its `home` says that it holds in another
    /// mode. It keeps its token and its range.
    fn adopt(&self, key: &str) -> String {
        let lease = self.0.lease;
        let (weight, limit) = weight_and_limit("home");
        let alone = format!(
            "k={key} AND owner<>'' AND NOT {} AND {}",
            in_other_mode("owner"),
            in_other_mode("home")
        );
        // The assignments run from left to right: that of `owner` sees the old `home`.
        format!(
            "INSERT INTO tenure_holder (k,owner,token,tokens,weight,lim,until,since,note,bell) \
             SELECT k,owner,token,{TOKENS_PER_GRANT},{weight},{limit},until,since,note,bell \
             FROM {lease} WHERE {alone};\
             UPDATE {lease} SET owner=SUBSTRING_INDEX(home,' ',1),home='' WHERE {alone};"
        )
    }

    /// Reads what the key is in use as, by its holders, or else by its first waiter.
    fn read_kind(&self, key: &str) -> String {
        let Statements { lease, waiter, .. } = self.0;
        let permits = format!("'{OTHER_MODE}permits");
        format!(
            "SELECT (SELECT CASE WHEN l.owner={permits}' THEN 'permits' \
             WHEN l.owner<>'' THEN 'lock' \
             ELSE (SELECT IF(w.home LIKE {permits} %','permits','lock') FROM {waiter} w \
             WHERE w.k={key} ORDER BY w.seat LIMIT 1) END FROM {lease} l WHERE l.k={key}) \
             INTO {KIND};"
        )
    }

    /// Grants the first queue entries for as long as they fit beside the holders. The end of the
    /// entry becomes the end of the lease: the waiter knows it without another request.
    ///
    /// An exclusive entry fits only as the first one of an unused key: then it goes into the row,
    /// and no entry behind it fits. Otherwise a run of entries in other modes is granted at once,
    /// as many as a range has tokens.
    fn grant_what_fits(&self, key: &str) -> String {
        let Statements { lease, waiter, .. } = self.0;
        let whole = whole();
        let (weight, limit) = weight_and_limit("w.home");
        let not_alone = format!("owner='' OR {}", in_other_mode("owner"));
        let (is_other, is_other_run) = (in_other_mode("w.home"), in_other_mode("run.home"));
        format!(
            "SELECT (SELECT COALESCE(SUM(weight),0) FROM tenure_holder WHERE k={key})\
             +(SELECT IF({not_alone},0,{whole}) FROM {lease} WHERE k={key}),\
             (SELECT token+{TOKENS_PER_GRANT} FROM {lease} WHERE k={key}) INTO {USED},{BASE};\
             INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
             SELECT w.k,w.owner,{BASE},w.until,{PACKET_TIME},w.note,w.home,w.bell \
             FROM (SELECT * FROM {waiter} WHERE k={key} ORDER BY seat LIMIT 1) w \
             WHERE {USED}=0 AND NOT {is_other} \
             ON DUPLICATE KEY UPDATE owner=VALUES(owner),token=VALUES(token),\
             until=VALUES(until),since=VALUES(since),note=VALUES(note),home=VALUES(home),\
             bell=VALUES(bell);\
             INSERT INTO tenure_holder (k,owner,token,tokens,weight,lim,until,since,note,bell) \
             SELECT run.k,run.owner,{BASE}+run.number-1,1,run.weight,run.lim,run.until,\
             {PACKET_TIME},run.note,run.bell FROM (SELECT q.*,\
             ROW_NUMBER() OVER (ORDER BY q.seat) AS number,\
             MIN({USED}+q.together<=q.lim) OVER (ORDER BY q.seat) AS fits FROM (SELECT e.*,\
             SUM(e.weight) OVER (ORDER BY e.seat) AS together FROM (SELECT w.k,w.seat,w.owner,\
             w.until,w.note,w.bell,w.home,{weight} AS weight,{limit} AS lim FROM {waiter} w \
             WHERE w.k={key} ORDER BY w.seat LIMIT {TOKENS_PER_GRANT}) e) q) run \
             WHERE run.fits AND {is_other_run};\
             DELETE w FROM {waiter} w JOIN tenure_holder h ON h.k=w.k AND h.owner=w.owner \
             WHERE w.k={key};\
             DELETE w FROM {waiter} w JOIN {lease} l ON l.k=w.k AND l.owner=w.owner \
             WHERE w.k={key};"
        )
    }

    /// Makes the row of the key agree with its holders and its queue.
    fn settle(&self, key: &str) -> String {
        let Statements { lease, waiter, .. } = self.0;
        let whole = whole();
        let is_other = in_other_mode("owner");
        let of_holders = |what: &str| format!("(SELECT {what} FROM tenure_holder WHERE k={key})");
        let (end, token) = (of_holders("MAX(until)"), of_holders("COALESCE(MAX(token),0)"));
        let (since, limit) = (of_holders("MIN(since)"), of_holders("MIN(lim)"));
        // From left to right: the assignments before that of `owner` see the old one. The note is
        // for clients that see an exclusive holder there.
        format!(
            "SELECT {count} INTO {HOLDERS};\
             UPDATE {lease} SET \
             until=IF({HOLDERS}>0,{end},IF({is_other},{PACKET_TIME},until)),\
             since=IF({HOLDERS}>0,{since},since),\
             note=IF({HOLDERS}>0,(SELECT note FROM tenure_holder WHERE k={key} \
             ORDER BY token LIMIT 1),note),bell=IF({HOLDERS}>0,'',bell),\
             home=IF({HOLDERS}>0,'',home),token=GREATEST(token,{token}),\
             owner=IF({HOLDERS}>0,IF({limit}={whole},'{OTHER_MODE}shared',\
             '{OTHER_MODE}permits'),IF({is_other},'',owner)),\
             queued=(SELECT COUNT(*) FROM {waiter} w WHERE w.k={key}) WHERE k={key};",
            count = of_holders("COUNT(*)"),
        )
    }
}
