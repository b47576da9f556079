//! The statements: who holds, who waits, and which token comes next, as rows of two tables.
//!
//! In `mode=lease` the row *is* the lock. In the other modes it is the record of whose turn it is,
//! and a named lock or a row lock decides; a record then also ends when the connection ends that
//! its `home` names.
//!
//! Locks are always taken in the order floor, row of the key, waiters. Tokens count up in the row
//! of their key, under its lock; a new row begins above the floor, which it reads under a shared
//! lock while sweeping holds the exclusive one. Time is the database's, in UTC.

use std::fmt::Write as _;

use super::literals::{Literals, hex, micros, native_name, range};
use super::options::Kind;
use crate::backend::{Claim, Scope};
use crate::key::Key;
use crate::token::FencingToken;

/// The database's clock: without a zone, and fixed within a statement, which is the safe side.
pub(super) const NOW: &str = "UTC_TIMESTAMP(6)";

/// The id of the connection that runs the statement: a variable that it was given when it was made.
pub(super) const HOME: &str = "@tenure_home";

/// When the packet began that runs, as a renewal's statements share it.
const AT: &str = "CAST(@tenure_at AS DATETIME(6))";

/// How the id of a connection begins that is there for a row lock and nothing else.
pub(super) const ROW_HOME: &str = "row-";

/// The statements of one mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct Book {
    pub(super) lease: &'static str,
    pub(super) waiter: &'static str,
    pub(super) kind: Kind,
}

/// Who asks.
pub(super) struct Asker<'a> {
    /// The bell of the client.
    pub(super) bell: &'a str,
    /// The connection that its records end with, as an expression.
    pub(super) home: &'a str,
}

impl Book {
    pub(super) fn new(kind: Kind) -> Book {
        let (lease, waiter) = match kind {
            Kind::Lease => ("tenure_lease", "tenure_waiter"),
            Kind::Session => ("tenure_session", "tenure_session_waiter"),
            Kind::Row => ("tenure_row", "tenure_row_waiter"),
        };
        Book { lease, waiter, kind }
    }

    /// Whether the record in this table is over. What was given back stays so when the clock is set
    /// back; what has the server's own lock is kept when the clock is set forward.
    fn over(&self, table: &str) -> String {
        let late = late(table);
        let native = match self.kind {
            Kind::Lease => return format!("({table}.owner='' OR {late})"),
            Kind::Session => {
                let name = native_name(&format!("{table}.k"));
                format!("IS_USED_LOCK({name})<=>{}", home(table))
            }
            Kind::Row => format!("{table}.home LIKE '{ROW_HOME}%'"),
        };
        let gone = self.gone(table);
        format!("({gone} OR ({late} AND NOT ({native})))")
    }

    /// The same of a record whose claim may have given up the server's own lock just now.
    fn gone(&self, table: &str) -> String {
        match self.kind {
            Kind::Lease => self.over(table),
            Kind::Session | Kind::Row => {
                format!("({table}.owner='' OR {} IS NULL)", home(table))
            }
        }
    }

    /// Whether the place in this table is over.
    fn place_over(&self, table: &str) -> String {
        match self.kind {
            Kind::Lease => late(table),
            Kind::Session | Kind::Row => format!("({} OR {} IS NULL)", late(table), home(table)),
        }
    }

    /// Takes a known key that is free and that nobody waits for: one row changed means granted, and
    /// the last insert id is the token.
    pub(super) fn take_free(&self, claim: &Claim, by: &Asker<'_>) -> String {
        let Asker { bell, home } = by;
        let (lease, over) = (self.lease, self.over(self.lease));
        let Literals { key, owner, until, note } = Literals::of(claim);
        format!(
            "UPDATE {lease} SET owner={owner},token=LAST_INSERT_ID(token+1),until={until},\
             since={NOW},note={note},home={home},bell='{bell}' \
             WHERE k={key} AND {over} AND queued=0"
        )
    }

    /// Takes a key that may be new, ours, or over, unless somebody waits for it.
    pub(super) fn take(&self, claim: &Claim, by: &Asker<'_>) -> String {
        let Asker { bell, home } = by;
        let (lease, waiter) = (self.lease, self.waiter);
        let (over, h_over, w_over) = (self.over(lease), self.over("h"), self.place_over("w"));
        let Literals { key, owner, until, note } = Literals::of(claim);
        // Assignments run from left to right: those after `owner` see the new one, and those after
        // `since` know by it whether this statement has granted. A request that was held up began
        // with an earlier clock than a renewal that passed it: it must not shorten the lease, nor
        // take the record away from the connection that has the row lock.
        format!(
            "INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
             SELECT {key},{owner},n+1,{until},{NOW},{note},{home},'{bell}' \
             FROM tenure_floor WHERE id=1 \
             AND NOT EXISTS (SELECT 1 FROM {lease} h WHERE h.k={key} AND h.owner<>{owner} \
             AND NOT {h_over}) \
             AND NOT EXISTS (SELECT 1 FROM {waiter} w WHERE w.k={key} AND w.owner<>{owner} \
             AND NOT {w_over}) LOCK IN SHARE MODE \
             ON DUPLICATE KEY UPDATE token={lease}.token+IF({over},1,0),\
             since=IF({over},{NOW},{lease}.since),\
             note=IF({over} OR {lease}.owner={owner},VALUES(note),{lease}.note),\
             bell=IF({over} OR {lease}.owner={owner},VALUES(bell),{lease}.bell),\
             owner=IF({over},{owner},{lease}.owner),\
             until=IF({lease}.owner={owner},IF({lease}.since={NOW},VALUES(until),\
             GREATEST({lease}.until,VALUES(until))),{lease}.until),\
             home=IF({lease}.owner={owner} AND {lease}.since={NOW},VALUES(home),\
             {lease}.home);{}",
            self.state(claim, "0")
        )
    }

    /// Takes, or takes or refreshes a place in the queue; gives the lock to the first living waiter
    /// if it is free.
    pub(super) fn ask(&self, claim: &Claim, by: &Asker<'_>) -> String {
        let (waiter, key) = (self.waiter, hex(claim.key.as_str()));
        format!(
            "{queue}DELETE FROM {waiter} WHERE k={key} AND {over};{hand}{state};COMMIT",
            queue = self.queue_up(claim, by),
            over = self.place_over(waiter),
            hand = self.hand_over(&key),
            state = self.state(claim, "@tenure_handed"),
        )
    }

    /// Takes or refreshes a place behind others, where a release will hand over: if the state then
    /// says that the lock is free, [`ask`](Book::ask) has to follow.
    pub(super) fn ask_behind(&self, claim: &Claim, by: &Asker<'_>) -> String {
        format!("{}{};COMMIT", self.queue_up(claim, by), self.state(claim, "0"))
    }

    /// Begins a transaction, locks the row of the key, which may have to be made, refreshes the
    /// claim if it holds, and else puts it into the queue. `queued` may be too high for a while; it
    /// is counted again at every hand-over.
    fn queue_up(&self, claim: &Claim, by: &Asker<'_>) -> String {
        let Asker { bell, home } = by;
        let (lease, waiter, over) = (self.lease, self.waiter, self.over(self.lease));
        let Literals { key, owner, until, note } = Literals::of(claim);
        format!(
            "START TRANSACTION;\
             INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
             SELECT {key},'',n,'1970-01-02','1970-01-02','','','' FROM tenure_floor WHERE id=1 \
             LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE queued=queued+1,\
             bell=IF({lease}.owner={owner} AND NOT {over},'{bell}',{lease}.bell),\
             until=IF({lease}.owner={owner} AND NOT {over},GREATEST({lease}.until,{until}),\
             {lease}.until);\
             INSERT INTO {waiter} (k,owner,until,since,note,home,bell) \
             SELECT k,{owner},{until},{NOW},{note},{home},'{bell}' FROM {lease} \
             WHERE k={key} AND NOT (owner={owner} AND NOT {over}) \
             ON DUPLICATE KEY UPDATE until=GREATEST({waiter}.until,VALUES(until)),\
             home=VALUES(home),bell=VALUES(bell);"
        )
    }

    /// Gives back what nobody waits for: one row changed means that it was held until now.
    pub(super) fn release_alone(&self, claim: &Claim) -> String {
        let (lease, gone) = (self.lease, self.gone(self.lease));
        let Literals { key, owner, .. } = Literals::of(claim);
        format!(
            "UPDATE {lease} SET owner='',until={NOW} \
             WHERE k={key} AND owner={owner} AND NOT {gone} AND queued=0"
        )
    }

    /// Gives back or withdraws, and gives the lock to the next. The first set says whether it was
    /// held until now.
    pub(super) fn release(&self, claim: &Claim) -> String {
        let (lease, waiter, gone) = (self.lease, self.waiter, self.gone(self.lease));
        let w_over = self.place_over(waiter);
        let Literals { key, owner, .. } = Literals::of(claim);
        format!(
            "START TRANSACTION;\
             SELECT owner={owner} AND NOT {gone} FROM {lease} WHERE k={key} FOR UPDATE;\
             UPDATE {lease} SET owner='',until={NOW} WHERE k={key} AND owner={owner};\
             DELETE FROM {waiter} WHERE k={key} AND (owner={owner} OR {w_over});\
             {hand}{state};COMMIT",
            hand = self.hand_over(&key),
            state = self.state(claim, "@tenure_handed"),
        )
    }

    /// Ends exactly this grant. The first set tells of the grant that ended, if it was there.
    pub(super) fn evict(&self, key: &Key, token: FencingToken) -> String {
        let (lease, waiter, over) = (self.lease, self.waiter, self.over(self.lease));
        let (w_over, key, token) = (self.place_over(waiter), hex(key.as_str()), token.get());
        format!(
            "START TRANSACTION;\
             SELECT owner,IS_USED_LOCK(CONCAT('tenure:bell:',bell)),bell FROM {lease} \
             WHERE k={key} AND token={token} AND NOT {over} FOR UPDATE;\
             UPDATE {lease} SET owner='',until={NOW} \
             WHERE k={key} AND token={token} AND NOT {over};\
             DELETE FROM {waiter} WHERE k={key} AND {w_over};\
             {hand}{state};COMMIT",
            hand = self.hand_over(&key),
            state = self.state_of(&key, "''", "@tenure_handed"),
        )
    }

    /// If the lease is over, the first waiter becomes the owner and leaves the queue. Those whose
    /// places are over were deleted before. Its place's end becomes the lease's end.
    fn hand_over(&self, key: &str) -> String {
        let (lease, waiter, over) = (self.lease, self.waiter, self.over("l"));
        format!(
            "UPDATE {lease} l JOIN {waiter} w ON w.k=l.k SET l.owner=w.owner,l.token=l.token+1,\
             l.since={NOW},l.note=w.note,l.bell=w.bell,l.until=w.until,l.home=w.home \
             WHERE l.k={key} AND {over} AND \
             w.seat=(SELECT s FROM (SELECT MIN(seat) s FROM {waiter} WHERE k={key}) m);\
             SET @tenure_handed=ROW_COUNT();\
             DELETE w FROM {waiter} w JOIN {lease} l ON l.k=w.k AND l.owner=w.owner \
             WHERE w.k={key};\
             UPDATE {lease} SET queued=(SELECT COUNT(*) FROM {waiter} w WHERE w.k={key}) \
             WHERE k={key};"
        )
    }

    /// How things are with a key, read by [`State`](super::state::State).
    fn state(&self, claim: &Claim, handed: &str) -> String {
        let Literals { key, owner, .. } = Literals::of(claim);
        self.state_of(&key, &owner, handed)
    }

    fn state_of(&self, key: &str, owner: &str, handed: &str) -> String {
        let (lease, waiter, over) = (self.lease, self.waiter, self.over("l"));
        format!(
            "SELECT l.owner,l.token,TIMESTAMPDIFF(MICROSECOND,{NOW},l.until),\
             TIMESTAMPDIFF(MICROSECOND,l.since,{NOW}),{over},l.note,l.queued,l.bell,\
             {handed}>0,IF({handed}>0,IS_USED_LOCK(CONCAT('tenure:bell:',l.bell)),NULL),\
             (SELECT COUNT(*) FROM {waiter} a JOIN {waiter} me ON me.k=a.k AND a.seat<me.seat \
             WHERE a.k={key} AND me.owner={owner}) \
             FROM {lease} l WHERE l.k={key}"
        )
    }

    /// Extends what is held, then tells which of it is: key, owner, and whether its lease is as
    /// long as was asked for.
    ///
    /// A row that another transaction has locked is passed over, and not waited for: it would fail
    /// the renewal of all others. An UPDATE cannot do that, also not of rows that a subquery locks;
    /// an INSERT can, because it has read and locked all rows of its SELECT before it writes. Every
    /// row is there, so that nothing is inserted.
    pub(super) fn renew(&self, claims: &[Claim]) -> String {
        let lease = self.lease;
        let (over, l_over) = (self.over(lease), self.over("l"));
        let (mut until, mut tokens) = (String::new(), String::new());
        let (mut keys, mut owners) = (Vec::new(), Vec::new());
        for claim in claims {
            let Literals { key, owner, .. } = Literals::of(claim);
            let ttl = micros(claim.ttl);
            // Writing to a string cannot fail.
            let _fits = write!(until, " WHEN {owner} THEN {AT}+INTERVAL {ttl} MICROSECOND");
            if let Some(token) = claim.token {
                let _fits = write!(tokens, " WHEN {owner} THEN {token}");
            }
            keys.push(key);
            owners.push(owner);
        }
        // In the order of the keys, so that two renewals of one client cannot wait for each other.
        keys.sort();
        let (keys, owners) = (keys.join(","), owners.join(","));
        // A grant that was evicted is gone, whatever its owner was granted afterwards.
        let token = |table: &str| match &*tokens {
            "" => String::new(),
            _ => format!(" AND {table}.token=CASE {table}.owner{tokens} ELSE {table}.token END"),
        };
        format!(
            "SET @tenure_at={NOW};\
             INSERT INTO {lease} (k,owner,token,until,since,note,home,bell) \
             SELECT l.k,'',0,'1970-01-02','1970-01-02','','','' FROM {lease} l \
             WHERE l.k IN ({keys}) AND l.owner IN ({owners}){l_token} AND NOT {l_over} \
             FOR UPDATE SKIP LOCKED \
             ON DUPLICATE KEY UPDATE until=GREATEST({lease}.until,\
             CASE {lease}.owner{until} ELSE {lease}.until END);\
             SELECT k,owner,until>=CASE owner{until} ELSE until END FROM {lease} \
             WHERE k IN ({keys}) AND owner IN ({owners}){token} AND NOT {over}",
            l_token = token("l"),
            token = token(lease),
        )
    }

    /// Lets a record end with another connection.
    pub(super) fn set_home(&self, claim: &Claim, home: &str) -> String {
        let (lease, over) = (self.lease, self.over(self.lease));
        let Literals { key, owner, .. } = Literals::of(claim);
        format!("UPDATE {lease} SET home='{home}' WHERE k={key} AND owner={owner} AND NOT {over}")
    }

    /// How things are with these keys: key, owner, token, time left, over, waiters, time held.
    pub(super) fn look<'a>(&self, keys: impl Iterator<Item = &'a Key>) -> String {
        let (lease, over) = (self.lease, self.over(self.lease));
        let keys: Vec<_> = keys.map(|key| hex(key.as_str())).collect();
        format!(
            "SELECT k,owner,token,TIMESTAMPDIFF(MICROSECOND,{NOW},until),{over},queued,\
             TIMESTAMPDIFF(MICROSECOND,since,{NOW}) FROM {lease} WHERE k IN ({})",
            keys.join(",")
        )
    }

    /// The holders, then the waiters in order.
    pub(super) fn list(&self, scope: Scope<'_>) -> String {
        let (lease, waiter) = (self.lease, self.waiter);
        let (over, w_over, range) = (self.over(lease), self.place_over(waiter), range(scope));
        format!(
            "SELECT k,token,TIMESTAMPDIFF(MICROSECOND,{NOW},until),\
             TIMESTAMPDIFF(MICROSECOND,since,{NOW}),note FROM {lease} \
             WHERE {range} AND owner<>'' AND NOT {over} ORDER BY k;\
             SELECT k,TIMESTAMPDIFF(MICROSECOND,since,{NOW}),note FROM {waiter} \
             WHERE {range} AND NOT {w_over} ORDER BY k,seat"
        )
    }

    /// Removes rows up to `last` that nobody has used for a minute, and raises the floor above
    /// their tokens. The floor is locked from before the tokens are read.
    pub(super) fn sweep(&self, after: &str, last: &str) -> String {
        let (lease, waiter) = (self.lease, self.waiter);
        let old = format!("until<={NOW}-INTERVAL 1 MINUTE");
        let range = format!("k>{after} AND k<={last}");
        format!(
            "START TRANSACTION;SELECT n FROM tenure_floor WHERE id=1 FOR UPDATE;\
             UPDATE tenure_floor SET n=GREATEST(n,\
             (SELECT COALESCE(MAX(token),0) FROM {lease} WHERE {range})) WHERE id=1;\
             UPDATE {lease} SET queued=0 WHERE {range} AND {old} AND queued>0 AND NOT EXISTS \
             (SELECT 1 FROM {waiter} w WHERE w.k={lease}.k AND NOT w.{old});\
             DELETE FROM {lease} WHERE {range} AND {old} AND queued=0;\
             DELETE FROM {waiter} WHERE {range} AND {old};COMMIT"
        )
    }

    /// The last key of the next batch of rows to sweep; none if there is no full batch.
    pub(super) fn sweep_end(&self, after: &str, batch: usize) -> String {
        let (lease, skip) = (self.lease, batch - 1);
        format!("SELECT k FROM {lease} WHERE k>{after} ORDER BY k LIMIT 1 OFFSET {skip}")
    }
}

/// Whether the time of a record or place has passed.
fn late(table: &str) -> String {
    format!("{table}.until<={NOW}")
}

/// The connection that a record or place ends with, if it lives.
fn home(table: &str) -> String {
    format!("IS_USED_LOCK(CONCAT('tenure:',{table}.home))")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::Owner;

    #[test]
    fn nothing_a_user_chose_stands_in_a_statement_as_it_is() {
        let key = Key::new("'; DROP TABLE x; -- %").unwrap();
        let mut claim = Claim::new(key, Owner::random(), Duration::from_secs(1));
        claim.note = crate::backend::Note::new("n'", "h\\", 1, "DROP");
        let by = Asker { bell: "b", home: HOME };
        for kind in [Kind::Lease, Kind::Session, Kind::Row] {
            let book = Book::new(kind);
            for sql in [
                book.take_free(&claim, &by),
                book.take(&claim, &by),
                book.ask(&claim, &by),
                book.release(&claim),
                book.list(Scope::Prefix("DROP")),
            ] {
                assert!(!sql.contains("DROP"), "{sql}");
            }
        }
    }
}
