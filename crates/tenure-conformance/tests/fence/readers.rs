//! What every fence promises to the readers of a shared lock, and to writers beside them.

use std::hash::{BuildHasher, RandomState};

use anyhow::{Context, Result, ensure};
use futures_util::poll;
use tenure::fence::Stale;

use crate::registers::{Register, open};
use crate::{READERS, cases, token, unique};

/// How many tokens are shown in a random history.
const SHOWS: usize = 120;
/// How often each of the holders at once shows a token.
const ROUNDS: u64 = 25;

cases! {
    two_live_readers_are_both_admitted on READERS;
    a_stale_writer_is_refused_after_a_reader on READERS;
    a_stale_reader_is_refused_after_a_writer on READERS;
    a_downgraded_holder_goes_on_with_its_own_token on READERS;
    the_largest_tokens_of_readers_are_told_apart on READERS;
    every_history_of_readers_and_writers_is_as_the_model_says on READERS;
    no_stale_write_changes_what_a_reader_reads_at_once on READERS;
    a_reader_that_is_interrupted_and_begins_again_reads_no_stale_write on READERS;
}

async fn two_live_readers_are_both_admitted(url: String) -> Result<()> {
    let name = unique("two");
    let mut one = open(&url, &name).await?;
    let mut other = open(&url, &name).await?;
    one.write(5, Some(token(7))).await??;
    for _ in 0..2 {
        ensure!(other.read_shared(token(9)).await? == Ok(5));
        ensure!(one.read_shared(token(8)).await? == Ok(5), "the first reader was refused");
    }
    // As the first to use a resource, too.
    let mut fresh = open(&url, &unique("two")).await?;
    ensure!(fresh.read_shared(token(9)).await? == Ok(0));
    ensure!(fresh.read_shared(token(1)).await? == Ok(0));
    // The next writer is above both.
    one.write(6, Some(token(10))).await??;
    Ok(())
}

/// The two tokens of a refusal, and whether a reader is the cause.
fn refusal<T>(outcome: Result<T, Stale>, why: &'static str) -> Result<(u64, u64, bool)> {
    let stale = outcome.err().context(why)?;
    let who = if stale.is_by_reader() { ", as a reader" } else { "" };
    let text = format!("token {} is stale: {} was here before{who}", stale.token(), stale.seen());
    ensure!(stale.to_string() == text, "{stale}");
    Ok((stale.token().get(), stale.seen().get(), stale.is_by_reader()))
}

async fn a_stale_writer_is_refused_after_a_reader(url: String) -> Result<()> {
    let name = unique("stale-writer");
    let mut writer = open(&url, &name).await?;
    let mut reader = open(&url, &name).await?;
    writer.write(5, Some(token(7))).await??;
    ensure!(reader.read_shared(token(8)).await? == Ok(5));
    ensure!(reader.read_shared(token(9)).await? == Ok(5));
    let refused = writer.write(6, Some(token(7))).await?;
    ensure!(refusal(refused, "7 wrote after 9 had read")? == (7, 9, true));
    let refused = writer.read(Some(token(8))).await?;
    ensure!(refusal(refused, "8 came as a writer after 9 had read")? == (8, 9, true));
    ensure!(reader.read(None).await? == Ok(5));
    // A refused writer has left no trace: it refuses no reader.
    ensure!(reader.read_shared(token(7)).await? == Ok(5));
    writer.write(6, Some(token(9))).await??;
    Ok(())
}

async fn a_stale_reader_is_refused_after_a_writer(url: String) -> Result<()> {
    let name = unique("stale-reader");
    let mut writer = open(&url, &name).await?;
    let mut reader = open(&url, &name).await?;
    ensure!(reader.read_shared(token(7)).await? == Ok(0));
    writer.write(5, Some(token(9))).await??;
    let refused = reader.read_shared(token(8)).await?;
    ensure!(refusal(refused, "8 read after 9 had written")? == (8, 9, false));
    // A refused reader has left no trace: 9 is the highest of both kinds.
    let refused = writer.write(6, Some(token(8))).await?;
    ensure!(refusal(refused, "8 wrote after 9")? == (8, 9, false));
    ensure!(reader.read_shared(token(10)).await? == Ok(5));
    let refused = writer.write(6, Some(token(8))).await?;
    ensure!(refusal(refused, "8 wrote after 9 and 10")? == (8, 10, true));
    Ok(())
}

async fn a_downgraded_holder_goes_on_with_its_own_token(url: String) -> Result<()> {
    let name = unique("downgraded");
    let mut holder = open(&url, &name).await?;
    let mut reader = open(&url, &name).await?;
    holder.write(5, Some(token(7))).await??;
    ensure!(holder.read_shared(token(7)).await? == Ok(5));
    // Alone it could write still, for no later holder has come.
    holder.write(6, Some(token(7))).await??;
    ensure!(reader.read_shared(token(8)).await? == Ok(6));
    ensure!(holder.read_shared(token(7)).await? == Ok(6), "the downgraded holder was refused");
    ensure!(holder.write(7, Some(token(7))).await?.is_err(), "it wrote beside a reader");
    Ok(())
}

async fn the_largest_tokens_of_readers_are_told_apart(url: String) -> Result<()> {
    let mut register = open(&url, &unique("large")).await?;
    let largest = i64::MAX as u64;
    ensure!(register.read_shared(token(10)).await?.is_ok());
    // As texts, the longer one is higher.
    ensure!(register.write(1, Some(token(9))).await?.is_err());
    register.write(1, Some(token(10))).await??;
    ensure!(register.read_shared(token(9)).await?.is_err());
    ensure!(register.read_shared(token(largest)).await?.is_ok());
    let refused = register.write(2, Some(token(largest - 1))).await?;
    ensure!(refusal(refused, "one below")? == (largest - 1, largest, true));
    register.write(3, Some(token(largest))).await??;
    let refused = register.read_shared(token(largest - 1)).await?;
    ensure!(refusal(refused, "one below")? == (largest - 1, largest, false));
    Ok(())
}

/// One holder of a random history.
#[derive(Clone, Copy, Debug)]
struct Holder {
    number: u64,
    is_reader: bool,
    is_live: bool,
}

/// Grants go on while holders are paused, and show their tokens late or never: a live holder is
/// never refused, and a stale one never admitted after a later one that it could not have held
/// with.
async fn every_history_of_readers_and_writers_is_as_the_model_says(url: String) -> Result<()> {
    let name = unique("history");
    let mut registers = [open(&url, &name).await?, open(&url, &name).await?];
    let seed = RandomState::new().hash_one(&name);
    let mut random = Random(seed | 1);
    let (mut holders, mut shown) = (Vec::<Holder>::new(), Vec::<Holder>::new());
    let mut written = 0;
    for show in 0..SHOWS {
        if holders.is_empty() || random.below(3) == 0 {
            grant(&mut holders, random.below(3) > 0);
        }
        // Mostly one of the last ones.
        let back = random.below(holders.len().min(6));
        let holder = holders[holders.len() - 1 - back];
        let register = &mut registers[show % 2];
        let shows = token(holder.number);
        let outcome = if holder.is_reader {
            let read = register.read_shared(shows).await?;
            ensure!(read.is_err() || read == Ok(written), "seed {seed}: {holder:?} read {read:?}");
            read.map(drop)
        } else {
            register.write(i64::try_from(show)? + 1, Some(shows)).await?
        };
        let conflicts = |later: &&Holder| {
            later.number > holder.number && !(later.is_reader && holder.is_reader)
        };
        let later = shown.iter().find(conflicts);
        let text = format!("seed {seed}, show {show}: {holder:?} after {later:?}: {outcome:?}");
        ensure!(outcome.is_ok() || !holder.is_live, "a live holder was refused: {text}");
        ensure!(outcome.is_ok() == later.is_none(), "{text}");
        if outcome.is_ok() {
            shown.push(holder);
            written = if holder.is_reader { written } else { i64::try_from(show)? + 1 };
        }
    }
    Ok(())
}

/// Xorshift: a seed gives the same history again.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

/// A reader comes to readers; every other grant is after the end of all before it.
fn grant(holders: &mut Vec<Holder>, is_reader: bool) {
    if !is_reader || holders.iter().any(|holder| holder.is_live && !holder.is_reader) {
        holders.iter_mut().for_each(|holder| holder.is_live = false);
    }
    holders.push(Holder { number: holders.len() as u64 + 1, is_reader, is_live: true });
}

/// Two writers and two readers, each on its own connection. A writer writes its token, so that
/// what a reader finds shows who changed it.
async fn no_stale_write_changes_what_a_reader_reads_at_once(url: String) -> Result<()> {
    let name = unique("at-once");
    open(&url, &name).await?.write(1, Some(token(1))).await??;
    let holders = (0..4u64).map(|holder| {
        let (url, name) = (url.clone(), name.clone());
        tokio::spawn(async move {
            let mut register = open(&url, &name).await?;
            let mut last = 1;
            for round in 0..ROUNDS {
                let number = 2 + round * 4 + (holder + round) % 4;
                let admitted = if holder < 2 {
                    register.write(i64::try_from(number)?, Some(token(number))).await?.is_ok()
                } else {
                    read_twice(&mut *register, number).await?
                };
                last = if admitted { number } else { last };
            }
            anyhow::Ok(last)
        })
    });
    let mut highest = Vec::new();
    for holder in holders.collect::<Vec<_>>() {
        highest.push(holder.await??);
    }
    let (writer, reader) = (highest[0].max(highest[1]), highest[2].max(highest[3]));
    // No admission was lost: those that are left refuse one below.
    let mut register = open(&url, &name).await?;
    let left = register.read(None).await??;
    ensure!(left == i64::try_from(writer)?, "{left} is left, and {writer} was admitted");
    let refused = register.write(0, Some(token(writer.max(reader) - 1))).await?;
    ensure!(refusal(refused, "a stale writer")?.1 == writer.max(reader));
    if writer > 1 {
        let refused = register.read_shared(token(writer - 1)).await?;
        ensure!(refusal(refused, "a stale reader")?.1 == writer);
    }
    Ok(())
}

/// Whether the reader was admitted. What it reads changes only by a later writer.
async fn read_twice(register: &mut dyn Register, number: u64) -> Result<bool> {
    let Ok(first) = register.read_shared(token(number)).await? else { return Ok(false) };
    tokio::task::yield_now().await;
    let second = register.read(None).await??;
    let by_later = second > i64::try_from(number)?;
    ensure!(first == second || by_later, "{number} read {first}, and then {second}");
    Ok(true)
}

/// The reader's future is dropped in the middle of its show, after any number of polls, and it
/// begins again; the stale writer resumes between any two steps.
async fn a_reader_that_is_interrupted_and_begins_again_reads_no_stale_write(
    url: String,
) -> Result<()> {
    for polls in 0..6 {
        for resumes_at in 0..4 {
            interrupted(&url, polls, resumes_at)
                .await
                .with_context(|| format!("dropped after {polls} polls, resumed at {resumes_at}"))?;
        }
    }
    Ok(())
}

async fn interrupted(url: &str, polls: u32, resumes_at: u32) -> Result<()> {
    let name = unique("interrupted");
    let mut writer = open(url, &name).await?;
    writer.write(5, Some(token(7))).await??;
    let mut outcomes = Vec::new();
    let mut resume = async |at: u32| -> Result<()> {
        if at == resumes_at {
            outcomes.push(writer.write(6, Some(token(7))).await?);
        }
        Ok(())
    };
    resume(0).await?;
    let mut reader = open(url, &name).await?;
    {
        let mut show = reader.read_shared(token(8));
        for _ in 0..polls {
            if poll!(&mut show).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    // It goes with its connection.
    drop(reader);
    resume(1).await?;
    let mut reader = open(url, &name).await?;
    let first = reader.read_shared(token(8)).await??;
    resume(2).await?;
    let second = reader.read(None).await??;
    resume(3).await?;
    let third = reader.read_shared(token(8)).await??;
    ensure!(first == second && second == third, "read {first}, {second}, {third}");
    let wrote = outcomes.pop().context("the writer resumed")?.is_ok();
    ensure!(first == if wrote { 6 } else { 5 }, "wrote: {wrote}, read: {first}");
    match resumes_at {
        0 => ensure!(wrote, "refused before any reader came"),
        2 | 3 => ensure!(!wrote, "admitted after the reader"),
        _ => {}
    }
    Ok(())
}
