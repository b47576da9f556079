//! `tenure lab replay` and `tenure lab simulate`: no server is needed.

#![cfg(feature = "lab")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::fs;

use support::{code, output, tenure, text};

const HISTORY: &str = include_str!("pause.jsonl");

/// A folder with a history in it.
fn recorded(history: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    fs::write(&file, history).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

#[test]
fn a_recorded_history_is_judged_and_drawn_again() {
    let (folder, file) = recorded(HISTORY);
    let name = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, drawing, json) = (name("p.html"), name("d.svg"), name("r.json"));
    let args = ["lab", "replay", &file, "--html", &page, "--svg", &drawing, "--json", &json];
    let first = output(&mut tenure(args));
    assert_eq!(code(&first), 0, "{first:?}");
    let shown = text(&first.stdout);
    assert!(shown.contains("2 holders for 30 ms · 1 of 2 updates lost"), "{shown}");
    assert!(shown.contains("Broken: ") && shown.contains("as expected"), "{shown}");
    assert!(fs::read_to_string(&drawing).unwrap().starts_with("<svg"));
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["judgement"]["measured"], "broken");
    assert_eq!(report["report"]["resource"]["plain"]["lost"], 1);
    // The page contains the history.
    let again = output(&mut tenure(["lab", "replay", &page]));
    assert_eq!((code(&again), text(&again.stdout)), (0, shown));
}

#[test]
fn the_exit_code_compares_measured_with_expected() {
    let replay = |expected: &str| {
        let history = HISTORY.replace(r#""expected":"broken""#, expected);
        let (_folder, file) = recorded(&history);
        code(&output(&mut tenure(["lab", "replay", &file])))
    };
    assert_eq!(replay(r#""expected":"broken""#), 0);
    assert_eq!(replay(r#""expected":"holds|broken""#), 0);
    assert_eq!(replay(r#""expected":"holds""#), 1);
    assert_eq!(replay(r#""expected":"no such verdict""#), 2);
    let calm: Vec<_> = HISTORY.lines().take(4).collect();
    let (_folder, file) = recorded(&calm.join("\n"));
    assert_eq!(
        code(&output(&mut tenure(["lab", "replay", &file]))),
        2,
        "the unfenced register lost nothing"
    );
}

#[test]
fn an_input_longer_than_any_history_is_refused() {
    let (_folder, file) = recorded(HISTORY);
    // A sparse file: it has a length and takes no disk space.
    fs::File::options().write(true).open(&file).unwrap().set_len((64 << 20) + 1).unwrap();
    let refused = output(&mut tenure(["lab", "replay", &file]));
    assert_eq!(code(&refused), 64, "{refused:?}");
    assert!(text(&refused.stderr).contains("longer than 64 MiB"), "{refused:?}");
}

#[test]
fn an_error_names_the_line_of_bad_input() {
    let refuses = |history: &str, words: &[&str]| {
        let (_folder, file) = recorded(history);
        let output = output(&mut tenure(["lab", "replay", &file]));
        let message = text(&output.stderr);
        assert_eq!(code(&output), 64, "{message}");
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    refuses(&HISTORY.replace("\"granted\"", "\"grabbed\""), &["line 3", "grabbed"]);
    refuses(&HISTORY.replacen("{\"scenario\"", "{\"scene\"", 1), &["line 1", "header"]);
    refuses("", &["empty"]);
    refuses("<html>no history</html>", &["line 1"]);
    let missing = output(&mut tenure(["lab", "replay", "/no/such/file"]));
    assert_eq!(code(&missing), 64);
    assert!(text(&missing.stderr).contains("/no/such/file"));
}

#[test]
fn schedules_run_and_a_seed_gives_the_same_output_again() {
    let many = output(&mut tenure(["lab", "simulate", "--schedules", "20"]));
    assert_eq!(code(&many), 0, "{many:?}");
    assert!(text(&many.stdout).contains("20 schedules"), "{many:?}");
    let one = || output(&mut tenure(["lab", "simulate", "--seed", "7"]));
    let (first, second) = (one(), one());
    assert_eq!(code(&first), 0, "{first:?}");
    assert_eq!(text(&first.stdout), text(&second.stdout));
}
