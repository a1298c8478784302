"""Pure decisions: from what one reconcile sees to the writes that it asks for. No client, clock or metrics here."""
