//! Pictures of histories that are written as text: they fit their frame, are escaped, and complete.

use super::*;
use crate::check;
use crate::history::{EventKind, Header};
use crate::test_history::{AMNESIA, KILLED, PAUSE, parse};

fn judged(history: &History) -> (Report, Judgement) {
    let report = check::check(history);
    let judgement = Judgement::of(&history.header, &report);
    (report, judgement)
}

#[test]
fn the_headline_has_the_figures() {
    let line = |expected, lines| headline(&check::check(&parse(expected, lines)));
    assert_eq!(
        line("overlap", PAUSE),
        "2 holders for 312 ms · 1 of 2 updates lost · with fence: 0 lost"
    );
    assert_eq!(
        line("broken", AMNESIA),
        "2 holders for 269 ms · 1 of 2 updates lost · with fence: 1 lost · 1 token given twice"
    );
    assert!(line("stuck", KILLED).contains("stuck for 1.51 s"), "{}", line("stuck", KILLED));
}

#[test]
fn a_page_loads_nothing() {
    let history = parse("overlap", PAUSE);
    let (report, judgement) = judged(&history);
    let page = html(&history, &report, &judgement);
    for word in ["src=", "@import", "href=", "url(http", "//cdn"] {
        assert!(!page.contains(word), "{word}");
    }
    let outside: Vec<_> = page.match_indices("http").map(|(at, _)| &page[at..at + 26]).collect();
    assert!(
        outside.iter().all(|text| text.starts_with("http-equiv") || text.contains("www.w3.org")),
        "{outside:?}"
    );
}

#[test]
fn a_page_contains_its_whole_history() {
    let history = parse("overlap", PAUSE);
    let (report, judgement) = judged(&history);
    let page = html(&history, &report, &judgement);
    let lines = embedded(&page).unwrap();
    assert_eq!(History::read(lines.as_bytes()).unwrap(), history);
    assert_eq!(embedded("<html></html>"), None);
}

/// A history in which every text is hostile.
fn hostile() -> History {
    let evil =
        "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u{1b}[2J\u{202e}";
    let mut history = parse("overlap", PAUSE);
    history.header = Header {
        scenario: evil.into(),
        about: evil.into(),
        lock: evil.into(),
        server: evil.into(),
        ..history.header
    };
    for lane in &mut history.header.lanes {
        lane.name += evil;
    }
    for event in &mut history.events {
        event.lane += evil;
        match &mut event.kind {
            EventKind::Asked { key, .. } => key.push_str(evil),
            EventKind::Seen { holder: Some(holder), .. } => holder.push_str(evil),
            EventKind::Fault { id, text, target, .. } => {
                [id, text, target].into_iter().for_each(|word| word.push_str(evil));
            }
            EventKind::Healed { text, target } => {
                [text, target].into_iter().for_each(|word| word.push_str(evil));
            }
            EventKind::Ended { how } => how.push_str(evil),
            _ => {}
        }
    }
    history
}

#[test]
fn hostile_text_is_escaped() {
    let history = hostile();
    let (report, judgement) = judged(&history);
    let page = html(&history, &report, &judgement);
    let drawing = svg(&history, &report, &judgement);
    let text = terminal(&history, &report, &judgement, false);
    for made in [&page, &drawing] {
        assert!(!made.contains("<script>alert") && !made.contains("<img"), "{made}");
        assert!(!made.contains(['\u{1b}', '\u{202e}']));
    }
    assert_eq!(page.matches("</script>").count(), 2, "the crosshair's and the history's own");
    assert!(!text.contains(['\u{1b}', '\u{202e}']));
    let lines = embedded(&page).unwrap();
    assert_eq!(History::read(lines.as_bytes()).unwrap(), history, "and the history is the same");
    let head = Heading { name: history.header.lock.clone(), ..Heading::default() };
    let cell = TableCell { symbol: history.header.lock.clone(), ..TableCell::default() };
    let (rows, cells) = (vec![head.clone()], vec![cell]);
    let page = matrix(&Table { rows, columns: vec![head], cells, about: String::new() });
    assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
}

#[test]
fn every_tag_of_a_page_is_closed() {
    for (expected, lines) in [("overlap", PAUSE), ("broken", AMNESIA), ("stuck", KILLED)] {
        let history = parse(expected, lines);
        let (report, judgement) = judged(&history);
        for made in [html(&history, &report, &judgement), svg(&history, &report, &judgement)] {
            for tag in ["svg", "g", "text", "details", "figure", "ul", "li", "table", "main", "div"]
            {
                let opened = made.matches(&format!("<{tag}>")).count()
                    + made.matches(&format!("<{tag} ")).count();
                let closed = made.matches(&format!("</{tag}>")).count();
                assert_eq!(opened, closed, "{tag}");
            }
        }
    }
}

#[test]
fn the_terminal_stays_within_a_hundred_columns() {
    for history in [parse("overlap", PAUSE), parse("stuck", KILLED), parse("broken", AMNESIA)] {
        let (report, judgement) = judged(&history);
        let text = terminal(&history, &report, &judgement, false);
        let wide = text.lines().find(|line| line.chars().count() > 100);
        assert!(wide.is_none_or(|line| line.contains('·')), "{wide:?}");
        assert!(terminal(&history, &report, &judgement, true).contains("\u{1b}["));
    }
}

#[test]
fn the_terminal_shows_a_refusal_in_a_shared_column_and_the_length_of_an_overlap() {
    // A's refused write and B's accepted one are a thousandth of the picture apart.
    let lines = "
        0 A asked 1
        1 A granted 1 1 2000
        2 A read 1 read_write 1 0 1
        2100 B asked 2
        2101 B granted 2 2 9000
        2102 B read 2 read_write 2 0 2
        2200 A wrote 1 read_write 3 1 1 refused
        2201 B wrote 2 read_write 4 1 2
        2202 B releasing 2
        2203 A releasing 1
        9000 A ended done";
    let history = parse("overlap", lines);
    let (report, judgement) = judged(&history);
    let text = terminal(&history, &report, &judgement, false);
    let lane = text.lines().find(|line| line.starts_with("read+write")).unwrap();
    assert!(lane.contains('⊘'), "{text}");
    // 64 ms inside both deadlines, and 269 ms in all, as A goes on after its own.
    let late = AMNESIA.replace("9 A granted 1 2 2005", "9 A granted 1 2 500");
    let history = parse("broken", &late);
    let (report, judgement) = judged(&history);
    let text = terminal(&history, &report, &judgement, false);
    assert!(text.contains("two holders, 64 ms inside both deadlines, 269 ms in all"), "{text}");
    assert!(text.contains("2 holders for 64 ms"), "{text}");
}

#[test]
fn extreme_times_do_not_break_a_picture() {
    let huge = "
        0 A asked 1
        0 A granted 1 1 18000000000000
        17000000000000 B asked 2
        18000000000000 B granted 2 2 18000000000000";
    for lines in ["", "5 A note alone", "1 A releasing 1\n 2 A granted 1 1 0", huge] {
        let history = parse("holds", lines);
        let (report, judgement) = judged(&history);
        assert!(html(&history, &report, &judgement).ends_with("</html>\n"));
        assert!(!terminal(&history, &report, &judgement, true).is_empty());
    }
}

#[test]
fn many_clients_are_left_out_of_the_drawing() {
    let mut lines = String::new();
    for client in 0..500 {
        lines += &format!("{client} c{client} asked {client}\n");
        let at = 1000 + client * 10;
        lines += &format!("{at} c{client} granted {client} {client} {}\n", at + 2000);
        lines += &format!("{} c{client} releasing {client}\n", at + 9);
    }
    let history = parse("holds", &lines);
    let (report, judgement) = judged(&history);
    let drawing = svg(&history, &report, &judgement);
    assert!(drawing.len() < 100_000, "{}", drawing.len());
    assert!(drawing.contains("and "), "it says that clients are left out");
}
