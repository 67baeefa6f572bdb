//! Contenders in turn: the order of a round, and the driver that all benchmarks share.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::Stopped;

/// The contenders of a round, by number, in the order of this round.
///
/// Every second round is the one before it backwards, and each pair begins with another
/// contender. So each is first equally often, and none always runs in the caches, or beside the
/// memory still to be freed, that the same neighbour leaves behind.
pub(crate) fn order(round: usize, contenders: usize) -> impl Iterator<Item = usize> {
    (0..contenders).map(move |turn| {
        let turn = match round % 2 {
            0 => turn,
            _ => contenders - 1 - turn,
        };
        (round / 2 + turn) % contenders
    })
}

/// Rounds in which each of some contenders has one turn.
pub(crate) struct TakeTurns<'a> {
    pub(crate) contenders: usize,
    pub(crate) rounds: usize,
    /// Whether a round that does not count comes first, to warm all caches.
    pub(crate) warm_up: bool,
    /// Raised, it ends the run before the next turn.
    pub(crate) stop: &'a AtomicBool,
}

impl TakeTurns<'_> {
    /// Returns the results that count, by contender and then by round.
    ///
    /// `turn` is one contender's turn. `verify` says whether its result is the right one, in the
    /// warm-up as well: the first wrong one ends the run, as there are no figures then.
    /// `after_turn` is called after each turn that counts.
    pub(crate) fn run<T, E: From<Stopped>>(
        &self,
        mut turn: impl FnMut(usize) -> Result<T, E>,
        mut verify: impl FnMut(usize, &T) -> Result<(), E>,
        mut after_turn: impl FnMut(),
    ) -> Result<Vec<Vec<T>>, E> {
        let mut results: Vec<Vec<T>> = (0..self.contenders).map(|_| Vec::new()).collect();
        let warm_up = self.warm_up.then_some((0, false));
        for (round, counts) in (warm_up.into_iter()).chain((0..self.rounds).map(|n| (n, true))) {
            for contender in order(round, self.contenders) {
                if self.stop.load(Relaxed) {
                    return Err(Stopped.into());
                }
                let result = turn(contender)?;
                verify(contender, &result)?;
                if counts {
                    results[contender].push(result);
                    after_turn();
                }
            }
        }
        Ok(results)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static RUN: AtomicBool = AtomicBool::new(false);

    #[test]
    fn each_contender_is_first_equally_often_and_has_each_neighbour_before_it() {
        let rounds: Vec<String> = (0..6)
            .map(|round| order(round, 3).map(|one| ["a", "b", "c"][one]).collect())
            .collect();
        assert_eq!(rounds, ["abc", "cba", "bca", "acb", "cab", "bac"]);
        let rounds: Vec<Vec<_>> = (0..4).map(|round| order(round, 2).collect()).collect();
        assert_eq!(rounds, [[0, 1], [1, 0], [1, 0], [0, 1]]);
    }

    #[test]
    fn one_wrong_result_means_no_results_even_in_the_warm_up() {
        for (warm_up, wrong_at, taken) in [(true, 1, 2), (false, 5, 6), (true, 9, 8)] {
            let mut turns = 0;
            let results = TakeTurns {
                contenders: 2,
                rounds: 3,
                warm_up,
                stop: &RUN,
            }
            .run(
                |_| {
                    turns += 1;
                    Ok::<_, Stopped>(turns - 1)
                },
                |_, result| match *result == wrong_at {
                    true => Err(Stopped),
                    false => Ok(()),
                },
                || {},
            );
            assert_eq!(turns, taken);
            assert_eq!(results.is_err(), wrong_at < taken);
        }
    }
}
