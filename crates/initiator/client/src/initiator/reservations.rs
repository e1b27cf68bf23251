//! Reservations of volumes: reported and changed.

use multipath::{Handle, ReservationOp, Reservations, VolumeSettings};

use super::Initiator;
use crate::error::{Error, ErrorKind};
use crate::name::Name;

impl Initiator {
    /// The reservations of a volume that is open by this name; of a stripe, those of each of its legs. None
    /// for a target that knows no reservations.
    ///
    /// # Errors
    /// As [`Initiator::request_reservation`]; of a stripe, as [`Initiator::open`] too.
    pub fn reservations(&mut self, volume: Handle, name: &str) -> Result<Vec<Reservations>, Error> {
        let name = Name::parse(name)?;
        if name.chunk.is_none() {
            return Ok(self.report(volume)?.into_iter().collect());
        }
        let mut all = Vec::new();
        for urls in &name.legs {
            let first = urls.first().ok_or_else(|| Error::usage("a leg of the stripe names no volume"))?;
            let ((paths, _), terms) = (self.paths_of(urls)?, VolumeSettings::of(&first.options));
            let leg = self.inline.with(|client, cx| client.open(cx, paths, terms));
            let leg = leg.ok_or_else(|| Error::new(ErrorKind::Failed, "too many volumes are open"))?;
            let shown: Vec<String> = urls.iter().map(ToString::to_string).collect();
            let leg = self.finish(leg, &shown.join(","))?;
            let report = self.report(leg);
            self.close(leg)?;
            all.extend(report?);
        }
        Ok(all)
    }

    fn report(&mut self, volume: Handle) -> Result<Option<Reservations>, Error> {
        use volume::{Failure::Refused, Refusal::Unsupported};
        match self.request_reservation(volume, ReservationOp::Report) {
            Err(Error { failure: Some(Refused(Unsupported)), .. }) => Ok(None),
            other => other,
        }
    }

    /// Asks about, or changes, a volume's reservations, and waits for the answer.
    /// ```no_run
    /// use blockwire_client::{Handle, Initiator, ReservationOp};
    ///
    /// fn is_reserved(initiator: &mut Initiator, volume: Handle) -> Result<bool, blockwire_client::Error> {
    ///     let report = initiator.request_reservation(volume, ReservationOp::Report)?;
    ///     Ok(report.is_some_and(|report| report.held.is_some()))
    /// }
    /// ```
    ///
    /// # Errors
    /// What the target refused; no answer in time.
    pub fn request_reservation(
        &mut self,
        volume: Handle,
        request: ReservationOp,
    ) -> Result<Option<Reservations>, Error> {
        let id = self.fresh_id();
        let acts = matches!(request, ReservationOp::Change(_));
        if !self.inline.with(|client, cx| client.request_reservation(cx, volume, id, request)) {
            return Err(Error::new(ErrorKind::Failed, "too many reservation requests are in flight"));
        }
        loop {
            if let Some((of, how)) = self.inline.take(|client| client.poll_reservation_reply(volume))
                && of == id
            {
                return how.map_err(|failure| {
                    let error = self.failed(volume, failure, "reservation");
                    let is_unknown = acts && failure == volume::Failure::Failed(volume::Fault::PathLost);
                    if is_unknown { error.in_doubt() } else { error }
                });
            }
            self.turn(None);
        }
    }
}
