//! What the types promise to the compiler.

use tenure::{
    Attempt, Backend, Busy, Client, Config, Error, Event, FencingToken, Guard, Holder, Holding,
    Key, Lease, Lock, Lost, LostReason, Reentrant, Waiter,
};

fn everywhere<T: Send + Sync + Unpin + 'static>() {}

#[test]
fn public_types_can_go_everywhere() {
    everywhere::<Attempt<Guard>>();
    everywhere::<Busy>();
    everywhere::<Client>();
    everywhere::<Config>();
    everywhere::<Error>();
    everywhere::<Event>();
    everywhere::<FencingToken>();
    everywhere::<Guard>();
    everywhere::<Holder>();
    everywhere::<Holding>();
    everywhere::<Key>();
    everywhere::<Lease>();
    everywhere::<Lock>();
    everywhere::<Lost>();
    everywhere::<LostReason>();
    everywhere::<Reentrant>();
    everywhere::<Waiter>();
    everywhere::<tenure::blocking::Client>();
    everywhere::<tenure::blocking::Guard>();
    everywhere::<Box<dyn Backend>>();
}

#[test]
fn what_travels_often_is_small() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert!(size_of::<Guard>() <= 24);
    assert!(size_of::<Lost>() <= 32);
    assert_eq!(size_of::<Option<FencingToken>>(), 8);
}

#[test]
fn futures_own_what_they_need_and_can_be_spawned() {
    fn spawnable<F: Future + Send + 'static>(_: F) {}
    fn compiles(client: &Client) {
        spawnable(client.lock("a").acquire());
        spawnable(client.lock("a").try_acquire());
        spawnable(client.lock("a").acquire_within(std::time::Duration::ZERO));
        spawnable(client.lock("a").run(async |lease| lease.token()));
        spawnable(client.lock("a").status());
        spawnable(client.lock("a").until_free());
        spawnable(client.list(&String::from("a")));
        spawnable(client.flush());
        spawnable(client.shutdown(std::time::Duration::ZERO));
        spawnable(tenure::connect(&String::from("memory:")));
    }
    let _never_called = compiles;
}

#[test]
fn secrets_are_not_in_debug_output() {
    let config: Config = "memory://me:hunter2@host?prefix=a".parse().unwrap();
    let config = config.password("correct horse");
    let shown = format!("{config:?}");
    assert!(!shown.contains("hunter2") && !shown.contains("horse"), "{shown}");
}

#[test]
fn a_password_file_is_a_regular_file_and_not_large() {
    let folder = tempfile::tempdir().unwrap();
    let read = |path: &std::path::Path| {
        format!("memory://me@host?password_file={}", path.display()).parse::<Config>()
    };
    let file = folder.path().join("secret");
    for (size, fits) in [(9, true), (64 * 1024, true), (64 * 1024 + 1, false)] {
        std::fs::write(&file, "x".repeat(size)).unwrap();
        assert_eq!(read(&file).is_ok(), fits, "{size} bytes");
    }
    for (path, why) in [("/dev/zero", "regular file"), ("/nowhere/at/all", "No such file")] {
        let error = read(path.as_ref()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn what_fences_answer_can_go_everywhere() {
    use tenure::fence::{Fenced, Fences, Refused, Stale, file::Admitted};

    everywhere::<Admitted>();
    everywhere::<Fenced<u32>>();
    everywhere::<Fences>();
    everywhere::<Refused<Error>>();
    everywhere::<Stale>();
}
