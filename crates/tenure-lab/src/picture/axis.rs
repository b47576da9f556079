//! The axis of time. Where two clients hold at once the long wait before it does not matter: a span
//! without events is folded, and the axis says how long it is.

/// A span without events is folded if it has more than this share of the whole.
const LONG: f64 = 0.18;
/// The share of the axis that a folded span gets.
const FOLDED: f64 = 0.09;

/// Maps moments to positions between 0 and 1.
pub(super) struct TimeAxis {
    /// The begin of each span: its moment and its position. The last one is the end.
    anchors: Vec<(u64, f64)>,
    /// The spans that are folded.
    pub(super) folds: Vec<(u64, u64)>,
}

impl TimeAxis {
    /// An axis without folds.
    pub(super) fn unfolded(from: u64, to: u64) -> TimeAxis {
        TimeAxis {
            anchors: vec![(from, 0.0), (to.max(from.saturating_add(1)), 1.0)],
            folds: Vec::new(),
        }
    }

    /// An axis on which long spans without events are folded, except those for whose begin `kept`
    /// is true. `moments` are the times of the events, in order.
    pub(super) fn folded(
        from: u64,
        to: u64,
        moments: &[u64],
        kept: impl Fn(u64) -> bool,
    ) -> TimeAxis {
        let span = to.saturating_sub(from).max(1);
        let is_long = |pair: &[u64]| (pair[1] - pair[0]) as f64 > LONG * span as f64;
        let folds: Vec<_> = moments
            .windows(2)
            .filter(|pair| is_long(pair) && !kept(pair[0]))
            // A little stays unfolded on both sides, so that marks keep their distance.
            .map(|pair| (pair[0] + span / 40, pair[1] - span / 40))
            .collect();
        let hidden: u64 = folds.iter().map(|(from, to)| to - from).sum();
        let share = 1.0 - folds.len() as f64 * FOLDED;
        // A fold makes the picture harder to read: it has to save enough room.
        if hidden < span / 5 * 2 || share <= 0.2 {
            return TimeAxis::unfolded(from, to);
        }
        let scale = share / (span - hidden).max(1) as f64;
        let mut anchors = vec![(from, 0.0)];
        let mut position = 0.0;
        let mut at = from;
        for &(begin, end) in &folds {
            position += (begin - at) as f64 * scale;
            anchors.push((begin, position));
            position += FOLDED;
            anchors.push((end, position));
            at = end;
        }
        anchors.push((to.max(at.saturating_add(1)), 1.0));
        TimeAxis { anchors, folds }
    }

    pub(super) fn from(&self) -> u64 {
        self.anchors[0].0
    }

    pub(super) fn to(&self) -> u64 {
        self.anchors[self.anchors.len() - 1].0
    }

    /// How much time the axis would show if its unfolded parts filled all of it.
    pub(super) fn shown(&self) -> u64 {
        let hidden: u64 = self.folds.iter().map(|(from, to)| to - from).sum();
        let share = 1.0 - self.folds.len() as f64 * FOLDED;
        ((self.to() - self.from() - hidden) as f64 / share) as u64
    }

    /// The position of a moment.
    pub(super) fn position(&self, at: u64) -> f64 {
        let next = self.anchors.partition_point(|anchor| anchor.0 <= at);
        let next = next.clamp(1, self.anchors.len() - 1);
        let (from, to) = (self.anchors[next - 1], self.anchors[next]);
        let part = at.saturating_sub(from.0) as f64 / (to.0 - from.0).max(1) as f64;
        (from.1 + part * (to.1 - from.1)).clamp(0.0, 1.0)
    }

    /// The anchors, for the way back from positions to moments.
    pub(super) fn anchors(&self) -> &[(u64, f64)] {
        &self.anchors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_without_events_is_folded_and_order_stays() {
        let axis = TimeAxis::folded(0, 1000, &[0, 10, 900, 950, 1000], |_| false);
        assert_eq!(axis.folds, [(35, 875)]);
        let positions: Vec<f64> = (0..=1000).step_by(10).map(|at| axis.position(at)).collect();
        assert!(positions.is_sorted());
        assert!(axis.position(900) < 0.5, "the end has most of the room: {}", axis.position(900));
        assert_eq!((axis.position(0), axis.position(1000)), (0.0, 1.0));
    }

    #[test]
    fn runs_with_many_events_are_not_folded() {
        let moments: Vec<u64> = (0..=100).map(|at| at * 10).collect();
        let axis = TimeAxis::folded(0, 1000, &moments, |_| false);
        assert!(axis.folds.is_empty());
        let kept = TimeAxis::folded(0, 1000, &[0, 10, 900, 950, 1000], |at| at == 10);
        assert!(kept.folds.is_empty());
        assert_eq!(axis.position(500), 0.5);
        assert_eq!(TimeAxis::unfolded(5, 5).position(5), 0.0);
    }
}
