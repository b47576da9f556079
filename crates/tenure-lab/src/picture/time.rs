//! The axis of time. Where two clients hold at once the long wait before it is not the story: a
//! stretch in which nothing happens is folded, and the axis says so.

/// Maps moments to places between 0 and 1.
pub(super) struct Time {
    /// Where each stretch begins: its moment and its place. The last one is the end.
    anchors: Vec<(u64, f64)>,
    /// The stretches that are folded.
    pub(super) folds: Vec<(u64, u64)>,
}

/// A stretch without events is folded if it is so much of the whole, and becomes so much.
const LONG: f64 = 0.18;
const FOLDED: f64 = 0.09;

impl Time {
    /// From the first moment to the last, all stretches as they are.
    pub(super) fn even(from: u64, to: u64) -> Time {
        Time {
            anchors: vec![(from, 0.0), (to.max(from.saturating_add(1)), 1.0)],
            folds: Vec::new(),
        }
    }

    /// The same with long quiet stretches folded, but for those that are to be kept. `moments` are
    /// in order.
    pub(super) fn folded(from: u64, to: u64, moments: &[u64], kept: impl Fn(u64) -> bool) -> Time {
        let span = to.saturating_sub(from).max(1);
        let quiet = |pair: &[u64]| (pair[1] - pair[0]) as f64 > LONG * span as f64;
        let folds: Vec<_> = moments
            .windows(2)
            .filter(|pair| quiet(pair) && !kept(pair[0]))
            // A little of the silence stays on both sides, so that marks keep their distance.
            .map(|pair| (pair[0] + span / 40, pair[1] - span / 40))
            .collect();
        let hidden: u64 = folds.iter().map(|(from, to)| to - from).sum();
        let share = 1.0 - folds.len() as f64 * FOLDED;
        // A fold costs the eye something: it has to be worth it.
        if hidden < span / 5 * 2 || share <= 0.2 {
            return Time::even(from, to);
        }
        let scale = share / (span - hidden).max(1) as f64;
        let (mut anchors, mut place, mut at) = (vec![(from, 0.0)], 0.0, from);
        for &(begin, end) in &folds {
            place += (begin - at) as f64 * scale;
            anchors.push((begin, place));
            place += FOLDED;
            anchors.push((end, place));
            at = end;
        }
        anchors.push((to.max(at.saturating_add(1)), 1.0));
        Time { anchors, folds }
    }

    pub(super) fn from(&self) -> u64 {
        self.anchors[0].0
    }

    pub(super) fn to(&self) -> u64 {
        self.anchors[self.anchors.len() - 1].0
    }

    /// How much time the axis shows in its even parts, if they filled all of it.
    pub(super) fn shown(&self) -> u64 {
        let hidden: u64 = self.folds.iter().map(|(from, to)| to - from).sum();
        let share = 1.0 - self.folds.len() as f64 * FOLDED;
        ((self.to() - self.from() - hidden) as f64 / share) as u64
    }

    /// The place of a moment.
    pub(super) fn place(&self, at: u64) -> f64 {
        let next = self.anchors.partition_point(|anchor| anchor.0 <= at);
        let next = next.clamp(1, self.anchors.len() - 1);
        let (from, to) = (self.anchors[next - 1], self.anchors[next]);
        let part = at.saturating_sub(from.0) as f64 / (to.0 - from.0).max(1) as f64;
        (from.1 + part * (to.1 - from.1)).clamp(0.0, 1.0)
    }

    /// The anchors, for a reader who goes the other way.
    pub(super) fn anchors(&self) -> &[(u64, f64)] {
        &self.anchors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_stretch_is_folded_and_order_stays() {
        let time = Time::folded(0, 1000, &[0, 10, 900, 950, 1000], |_| false);
        assert_eq!(time.folds, [(35, 875)]);
        let places: Vec<f64> = (0..=1000).step_by(10).map(|at| time.place(at)).collect();
        assert!(places.is_sorted());
        assert!(time.place(900) < 0.5, "the end has most of the room: {}", time.place(900));
        assert_eq!((time.place(0), time.place(1000)), (0.0, 1.0));
    }

    #[test]
    fn busy_runs_are_left_as_they_are() {
        let moments: Vec<u64> = (0..=100).map(|at| at * 10).collect();
        let time = Time::folded(0, 1000, &moments, |_| false);
        assert!(time.folds.is_empty());
        let kept = Time::folded(0, 1000, &[0, 10, 900, 950, 1000], |at| at == 10);
        assert!(kept.folds.is_empty());
        assert_eq!(time.place(500), 0.5);
        assert_eq!(Time::even(5, 5).place(5), 0.0);
    }
}
