"""What one revision calls differently from another: parameters up, results, errors and entries down.

Between the same revisions, and wherever a client knows everything that its server may say, nothing is
opened and the bytes pass. What a revision lacks is left out, or said in the words that it has. Pure
functions; the rules are those of the revisions' schemas, side by side.
"""
